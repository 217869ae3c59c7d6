// What a product takes from packed quantized weights (quantized_format.h). Included by
// kernel_table.inc inside a namespace.

// The operands of one group, from a panel as it is packed. `column` counts outputs of the panel.
template <typename Format>
struct PackedWeights {
  // Weights 4 * quad to 4 * quad + 3.
  template <int quad>
  static Bytes quad_of(const uint8_t* group, int64_t column) {
    constexpr int64_t kPlane = 4 * kQuantizedPanel;
    const uint8_t* bits = group + Format::kScaleBytes + 4 * column;
    if constexpr (Format::kBits == 8) return load_bytes(bits + quad * kPlane);
    const Bytes both = load_bytes(bits + quad / 2 * kPlane);
    const Bytes low = mask(quad % 2 ? shift<-4>(both) : both, 15);
    if constexpr (Format::kBits == 5) {
      return low | mask(shift<4 - quad>(load_bytes(bits + 4 * kPlane)), 16);
    } else if constexpr (Format::kBits == 6) {
      const Bytes high = load_bytes(bits + (4 + quad / 4) * kPlane);
      return low | mask(shift<4 - 2 * (quad % 4)>(high), 48);
    } else {
      return low;
    }
  }

  // The scales of `part` of the group.
  static Vec scales(const uint8_t* header, const uint8_t* group, int part, int64_t column) {
    if constexpr (Format::kScaleKind == ScaleKind::kSixBit) {
      return load_half(header + 2 * column) * load_small(group + column);
    } else if constexpr (Format::kScaleKind == ScaleKind::kSigned) {
      const uint8_t* scales = group + part * kQuantizedPanel + column;
      return load_half(header + 2 * column) * load_small(reinterpret_cast<const int8_t*>(scales));
    } else {
      return load_half(group + 2 * column);
    }
  }

  static Vec mins(const uint8_t* header, const uint8_t* group, int64_t column) {
    if constexpr (Format::kScaleKind == ScaleKind::kSixBit) {
      const uint8_t* mins = group + kQuantizedPanel + column;
      return load_half(header + 2 * (kQuantizedPanel + column)) * load_small(mins);
    } else {
      return load_half(group + 2 * (kQuantizedPanel + column));
    }
  }
};
