#include "../op_checks.h"
#include "../ops.h"
#include "ggml_blocks.h"
#include "parallel.h"
#include "tensor_data.h"
#include "weight_memory.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cstring>

namespace pyengine {
namespace {

// Four weights of one output, 32 bits, in each plane: see quantized_format.h.
template <typename Format>
void pack_weights(const uint8_t* u, int64_t lane, uint8_t* planes) {
  constexpr int64_t kPlane = 4 * kQuantizedPanel;
  uint32_t quads[8];
  std::memcpy(quads, u, sizeof quads);
  const auto write = [&](int64_t plane, uint32_t quad) {
    std::memcpy(planes + plane * kPlane + 4 * lane, &quad, sizeof quad);
  };
  if constexpr (Format::kBits == 8) {
    for (int j = 0; j < 8; ++j) write(j, quads[j]);
    return;
  }
  const auto low = [&](int j) { return quads[j] & 0x0f0f0f0fu; };
  const auto high = [&](int j) { return (quads[j] & 0xf0f0f0f0u) >> 4; };
  for (int p = 0; p < 4; ++p) write(p, low(2 * p) | low(2 * p + 1) << 4);
  if constexpr (Format::kBits == 5) {
    uint32_t bits = 0;
    for (int j = 0; j < 8; ++j) bits |= high(j) << j;
    write(4, bits);
  } else if constexpr (Format::kBits == 6) {
    for (int h = 0; h < 2; ++h) {
      uint32_t bits = 0;
      for (int j = 0; j < 4; ++j) bits |= high(4 * h + j) << (2 * j);
      write(4 + h, bits);
    }
  }
}

// A block of the file, of output `lane` of the panel, into the panel's block.
template <typename Format>
void pack_block(const uint8_t* block, int64_t lane, uint8_t* out) {
  const auto copy_half = [](const uint8_t* from, uint8_t* to) { std::memcpy(to, from, 2); };
  if constexpr (Format::kScaleKind == ScaleKind::kSixBit) {
    copy_half(block, out + 2 * lane);
    uint8_t* min = out + 2 * (kQuantizedPanel + lane);
    copy_half(block + 2, min);
    min[1] ^= 0x80;  // the file's mins are subtracted
  } else if constexpr (Format::kScaleKind == ScaleKind::kSigned) {
    copy_half(block + 208, out + 2 * lane);
  }
  uint8_t* record = out + Format::kHeaderBytes;
  for (int64_t group = 0; group < Format::kBlockGroups; ++group, record += Format::kGroupBytes) {
    if constexpr (Format::kScaleKind == ScaleKind::kSixBit) {
      read_six_bits(block, group, record + lane, record + kQuantizedPanel + lane);
    } else if constexpr (Format::kScaleKind == ScaleKind::kSigned) {
      record[lane] = block[192 + 2 * group];
      record[kQuantizedPanel + lane] = block[193 + 2 * group];
    } else {
      copy_half(block, record + 2 * lane);
      if constexpr (Format::kHasMins) copy_half(block + 2, record + 2 * (kQuantizedPanel + lane));
    }
    uint8_t u[kQuantizedGroup];
    read_group<Format>(block, group, u);
    pack_weights<Format>(u, lane, record + Format::kScaleBytes);
  }
}

}  // namespace

Tensor pack_quantized_weight(const Tensor& blocks, int64_t ggml_type) {
  check_pack_quantized_weight(blocks, ggml_type);
  const GgmlType& type = *find_ggml_type(ggml_type);
  const int64_t num_outputs = blocks.size(0), row_bytes = blocks.size(1);
  const int64_t num_blocks = row_bytes / type.block_bytes;
  const int64_t num_panels = num_packed_panels(num_outputs);
  const int64_t panel_bytes = packed_panel_bytes(ggml_type, num_blocks * type.block_size);
  Tensor packed = new_weight(blocks, {num_panels, panel_bytes});
  const uint8_t* from = data<uint8_t>(blocks);
  uint8_t* to = mutable_data<uint8_t>(packed);
  dispatch_packed_format(ggml_type, [&](auto format) {
    using Format = decltype(format);
    parallel_items(num_panels, panel_bytes, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        uint8_t* out = to + panel * panel_bytes;
        const int64_t first = panel * kQuantizedPanel;
        const int64_t num_lanes = std::min(kQuantizedPanel, num_outputs - first);
        if (num_lanes < kQuantizedPanel) std::memset(out, 0, static_cast<size_t>(panel_bytes));
        for (int64_t block = 0; block < num_blocks; ++block, out += Format::kBlockBytes) {
          for (int64_t lane = 0; lane < num_lanes; ++lane) {
            const uint8_t* row = from + (first + lane) * row_bytes;
            pack_block<Format>(row + block * Format::kFileBytes, lane, out);
          }
        }
      }
    });
  });
  return packed;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("pack_quantized_weight", TORCH_BOX(&pyengine::pack_quantized_weight));
}
