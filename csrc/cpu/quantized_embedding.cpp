#include "../op_checks.h"
#include "../ops.h"
#include "parallel.h"
#include "quantized_format.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/library.h>
#include <torch/headeronly/util/Half.h>

#include <cstring>

namespace pyengine {
namespace {

float read_half(const uint8_t* halves, int64_t lane) {
  uint16_t half;
  std::memcpy(&half, halves + 2 * lane, sizeof half);
  return torch::headeronly::Half(half, torch::headeronly::Half::from_bits());
}

// The weights of output `lane` in a group, from planes of bits: see quantized_format.h.
template <typename Format>
void unpack_weights(const uint8_t* planes, int64_t lane, uint8_t* u) {
  constexpr int64_t kPlane = 4 * kQuantizedPanel;
  const auto byte = [&](int64_t plane, int64_t i) {
    return planes[plane * kPlane + 4 * lane + i % 4];
  };
  for (int64_t i = 0; i < kQuantizedGroup; ++i) {
    const int64_t quad = i / 4;
    if constexpr (Format::kBits == 8) {
      u[i] = byte(quad, i);
      continue;
    }
    int bits = (byte(quad / 2, i) >> (quad % 2 * 4)) & 15;
    if constexpr (Format::kBits == 5) bits |= ((byte(4, i) >> quad) & 1) << 4;
    if constexpr (Format::kBits == 6) bits |= ((byte(4 + quad / 4, i) >> (quad % 4 * 2)) & 3) << 4;
    u[i] = static_cast<uint8_t>(bits);
  }
}

// Output `lane` of a panel's block of inputs, with the operations, and so the bits, of
// `dequantize`: scales are exact, products with integers as well, and the min is added last.
template <typename Format, typename T>
void unpack_block(const uint8_t* block, int64_t lane, T* out) {
  const uint8_t* group = block + Format::kHeaderBytes;
  for (int64_t g = 0; g < Format::kBlockGroups; ++g, group += Format::kGroupBytes) {
    float scales[2], min = 0;
    if constexpr (Format::kScaleKind == ScaleKind::kSixBit) {
      scales[0] = read_half(block, lane) * static_cast<float>(group[lane]);
      min = read_half(block + 2 * kQuantizedPanel, lane) *
            static_cast<float>(group[kQuantizedPanel + lane]);
    } else if constexpr (Format::kScaleKind == ScaleKind::kSigned) {
      for (int part = 0; part < 2; ++part) {
        const auto scale = static_cast<int8_t>(group[part * kQuantizedPanel + lane]);
        scales[part] = read_half(block, lane) * static_cast<float>(scale);
      }
    } else {
      scales[0] = read_half(group, lane);
      if constexpr (Format::kHasMins) min = read_half(group + 2 * kQuantizedPanel, lane);
    }
    uint8_t u[kQuantizedGroup];
    unpack_weights<Format>(group + Format::kScaleBytes, lane, u);
    for (int64_t i = 0; i < kQuantizedGroup; ++i) {
      const float scale = scales[Format::kScalesPerGroup == 2 ? i / 16 : 0];
      const float product = scale * static_cast<float>(u[i] - Format::kZeroPoint);
      *out++ = from_float<T>(Format::kHasMins ? product + min : product);
    }
  }
}

}  // namespace

Tensor quantized_embedding(const Tensor& token_ids, const Tensor& packed_weight, int64_t ggml_type,
                           int64_t num_rows, int64_t row_size, ScalarType dtype) {
  check_quantized_embedding(token_ids, ggml_type, row_size, dtype);
  const int64_t panel_bytes = packed_panel_bytes(ggml_type, row_size);
  check_packed_quantized_weight(packed_weight, num_packed_panels(num_rows), panel_bytes);
  const int64_t num_tokens = token_ids.size(0);
  const int64_t* ids = data<int64_t>(token_ids);
  check_range("token_ids", ids, num_tokens, 0, num_rows);
  Tensor out = torch::stable::new_empty(packed_weight, {num_tokens, row_size}, dtype);
  const uint8_t* weight = data<uint8_t>(packed_weight);
  dispatch_activation(dtype, [&](auto type) {
    using T = decltype(type);
    T* const rows = mutable_data<T>(out);
    dispatch_packed_format(ggml_type, [&](auto format) {
      using Format = decltype(format);
      constexpr int64_t kBlockSize = Format::kBlockGroups * kQuantizedGroup;
      parallel_items(num_tokens, row_size, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const uint8_t* block = weight + ids[t] / kQuantizedPanel * panel_bytes;
          for (int64_t i = 0; i < row_size; i += kBlockSize, block += Format::kBlockBytes) {
            unpack_block<Format>(block, ids[t] % kQuantizedPanel, rows + t * row_size + i);
          }
        }
      });
    });
  });
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("quantized_embedding", TORCH_BOX(&pyengine::quantized_embedding));
}
