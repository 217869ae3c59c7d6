// What a product takes from quantized weights, packed (quantized_format.h) or unpacked. Included by
// kernel_table.inc inside a namespace.

// The operands of one group, from a panel as it is packed. `column` counts outputs of the panel.
template <typename Format>
struct PackedWeights : Format {
  static constexpr bool kIsStreamed = true;  // from memory

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

// The operands of one group, unpacked: float32 [scales and mins][32], then uint8 [8][32][4].
template <typename Format>
struct UnpackedWeights : Format {
  static constexpr bool kIsStreamed = false;
  static constexpr int kNumFloats = Format::kScalesPerGroup + (Format::kHasMins ? 1 : 0);
  static constexpr int64_t kBlockGroups = 1;
  static constexpr int64_t kHeaderBytes = 0;
  static constexpr int64_t kScaleBytes = 4 * kNumFloats * kQuantizedPanel;
  static constexpr int64_t kGroupBytes = kScaleBytes + kQuantizedGroup * kQuantizedPanel;
  static constexpr int64_t kBlockBytes = kGroupBytes;

  template <int quad>
  static Bytes quad_of(const uint8_t* group, int64_t column) {
    return load_bytes(group + kScaleBytes + 4 * (quad * kQuantizedPanel + column));
  }
  static Vec scales(const uint8_t* /*header*/, const uint8_t* group, int part, int64_t column) {
    return load(reinterpret_cast<const float*>(group) + part * kQuantizedPanel + column);
  }
  static Vec mins(const uint8_t* /*header*/, const uint8_t* group, int64_t column) {
    return load(reinterpret_cast<const float*>(group) + kQuantizedPanel + column);
  }
};

// Calls body(integral_constant) for each of [0, n).
template <int n, typename Body>
inline __attribute__((always_inline)) void unroll(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, n>{});
}

template <typename Format>
void unpack_group(const uint8_t* header, const uint8_t* group, uint8_t* out) {
  using From = PackedWeights<Format>;
  using To = UnpackedWeights<Format>;
  float* floats = reinterpret_cast<float*>(out);
  for (int64_t column = 0; column < kQuantizedPanel; column += kVecSize) {
    for (int part = 0; part < Format::kScalesPerGroup; ++part) {
      store(floats + part * kQuantizedPanel + column, From::scales(header, group, part, column));
    }
    if constexpr (Format::kHasMins) {
      store(floats + kQuantizedPanel + column, From::mins(header, group, column));
    }
    unroll<8>([&](auto quad) {
      store_bytes(out + To::kScaleBytes + 4 * (quad * kQuantizedPanel + column),
                  From::template quad_of<quad>(group, column));
    });
  }
}
