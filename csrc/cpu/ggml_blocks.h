// What the numbers of a ggml block are before any arithmetic: unsigned weights, scales, mins.
// Torch-free; the layouts are described in dequantize_kernel.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "quantized_format.h"

namespace pyengine {

// The weights of `group` (32 inputs) of a block, as unsigned integers around the zero point.
template <typename Format>
void read_group(const uint8_t* block, int64_t group, uint8_t* u) {
  if constexpr (Format::kGgmlType == PackedQ8_0::kGgmlType) {
    for (int i = 0; i < 32; ++i) u[i] = block[2 + i] ^ 0x80;
  } else if constexpr (Format::kIsKQuant && Format::kHasMins) {  // Q4_K, Q5_K
    const uint8_t* low = block + (Format::kBits == 5 ? 48 : 16) + group / 2 * 32;
    const int64_t shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) u[i] = (low[i] >> shift) & 15;
    if constexpr (Format::kBits == 5) {
      const uint8_t* high = block + 16;
      for (int i = 0; i < 32; ++i) u[i] |= static_cast<uint8_t>(((high[i] >> group) & 1) << 4);
    }
  } else if constexpr (Format::kIsKQuant) {  // Q6_K
    const int64_t half = group / 4, run = group % 4;
    const uint8_t* low = block + half * 64 + run % 2 * 32;
    const uint8_t* high = block + 128 + half * 32;
    for (int i = 0; i < 32; ++i) {
      const int bits = ((low[i] >> (run / 2 * 4)) & 15) | (((high[i] >> (run * 2)) & 3) << 4);
      u[i] = static_cast<uint8_t>(bits);
    }
  } else {  // Q4_0, Q4_1, Q5_0, Q5_1
    const uint8_t* low = block + Format::kFileBytes - 16;
    for (int i = 0; i < 16; ++i) u[i] = low[i] & 15;
    for (int i = 0; i < 16; ++i) u[i + 16] = low[i] >> 4;
    if constexpr (Format::kBits == 5) {
      uint32_t high;
      std::memcpy(&high, low - sizeof high, sizeof high);
      for (int i = 0; i < 32; ++i) u[i] |= static_cast<uint8_t>(((high >> i) & 1) << 4);
    }
  }
}

// The scale and the min of `group` of a Q4_K or Q5_K block, six bits each.
inline void read_six_bits(const uint8_t* block, int64_t group, uint8_t* scale, uint8_t* min) {
  const uint8_t* packed = block + 4;
  const uint8_t a = packed[group % 4], b = packed[group % 4 + 4], c = packed[group % 4 + 8];
  *scale = static_cast<uint8_t>(group < 4 ? a & 63 : (c & 15) | ((a >> 2) & 0x30));
  *min = static_cast<uint8_t>(group < 4 ? b & 63 : (c >> 4) | ((b >> 2) & 0x30));
}

}  // namespace pyengine
