// How quantized weights and activations lie in memory. Torch-free.
//
// Weights. A ggml block format gives a weight as scale * (u - zero point) + min: u is a few bits,
// and the scale and the min belong to a group of 32 inputs of one output (16 in Q6_K). Packed, 32
// outputs make a panel, and a panel is one stream in the order of use, group after group:
//
//   [header, in K-quants once for 8 groups][scales of 32 outputs][mins][u of 32 x 32 weights] ...
//
//   4 bits   [4][32][4]    byte (p, n, i): weight 8p + i of output n low, weight 8p + 4 + i high
//   5 bits   + [32][4]     byte (n, i): bit j is the fifth bit of weight 4j + i of output n
//   6 bits   + [2][32][4]  byte (h, n, i): bits 2j, 2j + 1 are those of weight 16h + 4j + i
//   8 bits   [8][32][4]    byte (j, n, i): weight 4j + i of output n
//
// So four weights of one output share 32 bits, which is what an int8 dot product takes. The last
// panel is padded with zeros.
#pragma once

#include <cstdint>

namespace pyengine {

constexpr int64_t kQuantizedPanel = 32;  // outputs
constexpr int64_t kQuantizedGroup = 32;  // inputs

// 32 inputs of a row: value i is values[i] * scale, with |values[i]| <= 127.
struct alignas(64) ActivationGroup {
  int8_t values[kQuantizedGroup];
  float scale;
  float scaled_sum;  // scale * sum of values
  // What a zero point takes off a sum of products: -zero point * sum of values.
  int32_t offset_8;
  int32_t offset_16;
  int32_t offset_128;
  int32_t offset_32[2];  // for each 16 values
};

enum class ScaleKind {
  kHalf,        // scales float16 [32]
  kHalfAndMin,  // scales float16 [32], mins float16 [32]
  kSixBit,      // header: d, -dmin float16 [32]; scales uint8 [32] times d, mins uint8 [32]
  kSigned,      // header: d float16 [32]; scales int8 [2][32] times d, for 16 inputs each
};

// kGgmlType: the type's number in GGUF files, kFileBytes: the size of its blocks there.
template <int64_t ggml_type, int64_t file_bytes, int bits, int zero_point, ScaleKind scale_kind>
struct PackedFormat {
  static constexpr int64_t kGgmlType = ggml_type;
  static constexpr int64_t kFileBytes = file_bytes;
  static constexpr int kBits = bits;
  static constexpr int kZeroPoint = zero_point;
  static constexpr ScaleKind kScaleKind = scale_kind;
  static constexpr bool kHasMins =
      scale_kind == ScaleKind::kHalfAndMin || scale_kind == ScaleKind::kSixBit;
  static constexpr int kScalesPerGroup = scale_kind == ScaleKind::kSigned ? 2 : 1;
  static constexpr bool kIsKQuant =
      scale_kind == ScaleKind::kSixBit || scale_kind == ScaleKind::kSigned;

  static constexpr int64_t kBlockGroups = kIsKQuant ? 8 : 1;
  static constexpr int64_t kHeaderBytes = kIsKQuant ? (kHasMins ? 4 : 2) * kQuantizedPanel : 0;
  static constexpr int64_t kScaleBytes =
      (scale_kind == ScaleKind::kHalfAndMin ? 4 : 2) * kQuantizedPanel;
  static constexpr int64_t kGroupBytes = kScaleBytes + kQuantizedPanel * kQuantizedGroup * bits / 8;
  static constexpr int64_t kBlockBytes = kHeaderBytes + kBlockGroups * kGroupBytes;

  static constexpr int64_t panel_bytes(int64_t num_inputs) {
    return num_inputs / (kBlockGroups * kQuantizedGroup) * kBlockBytes;
  }

  // Where a sum of products over the values of `part` of the group starts.
  static const int32_t* offset(const ActivationGroup& x, int part) {
    if constexpr (zero_point == 8) return &x.offset_8;
    if constexpr (zero_point == 16) return &x.offset_16;
    if constexpr (zero_point == 32) return &x.offset_32[part];
    if constexpr (zero_point == 128) return &x.offset_128;
    return nullptr;
  }
};

using PackedQ4_0 = PackedFormat<2, 18, 4, 8, ScaleKind::kHalf>;
using PackedQ4_1 = PackedFormat<3, 20, 4, 0, ScaleKind::kHalfAndMin>;
using PackedQ5_0 = PackedFormat<6, 22, 5, 16, ScaleKind::kHalf>;
using PackedQ5_1 = PackedFormat<7, 24, 5, 0, ScaleKind::kHalfAndMin>;
using PackedQ8_0 = PackedFormat<8, 34, 8, 128, ScaleKind::kHalf>;
using PackedQ4_K = PackedFormat<12, 144, 4, 0, ScaleKind::kSixBit>;
using PackedQ5_K = PackedFormat<13, 176, 5, 0, ScaleKind::kSixBit>;
using PackedQ6_K = PackedFormat<14, 210, 6, 32, ScaleKind::kSigned>;

// Calls body with a value of the format of a ggml type, which must have one.
template <typename Body>
void dispatch_packed_format(int64_t ggml_type, const Body& body) {
  switch (ggml_type) {
    case PackedQ4_0::kGgmlType:
      return body(PackedQ4_0{});
    case PackedQ4_1::kGgmlType:
      return body(PackedQ4_1{});
    case PackedQ5_0::kGgmlType:
      return body(PackedQ5_0{});
    case PackedQ5_1::kGgmlType:
      return body(PackedQ5_1{});
    case PackedQ8_0::kGgmlType:
      return body(PackedQ8_0{});
    case PackedQ4_K::kGgmlType:
      return body(PackedQ4_K{});
    case PackedQ5_K::kGgmlType:
      return body(PackedQ5_K{});
    case PackedQ6_K::kGgmlType:
      return body(PackedQ6_K{});
  }
}

// What a panel takes of a packed weight [N, num_inputs].
inline int64_t packed_panel_bytes(int64_t ggml_type, int64_t num_inputs) {
  int64_t bytes = 0;
  dispatch_packed_format(ggml_type, [&](auto format) { bytes = format.panel_bytes(num_inputs); });
  return bytes;
}

inline int64_t num_packed_panels(int64_t num_outputs) {
  return (num_outputs + kQuantizedPanel - 1) / kQuantizedPanel;
}

}  // namespace pyengine
