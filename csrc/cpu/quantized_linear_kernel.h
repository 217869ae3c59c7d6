// y = x W^T + b over packed quantized weights (quantized_format.h) and quantized activations.
// Included by kernel_table.inc inside a namespace.
//
// Row invariance: an output element adds up its groups in ascending order, in one accumulator,
//
//   sum += float(int32 dot product of the group) * (weight scale * activation scale)
//   sum += weight min * (activation scale * int32 sum of the group's activations)
//
// whatever the number of rows, the place of a row in a tile, or the thread. Dot products of
// integers are exact, and zero points are taken off in them.

// Rows and vectors of outputs of one tile: integer and float sums are to stay in registers.
#if defined(PYENGINE_VEC_AVX512)
constexpr int kQuantizedRows = 6;
#else
constexpr int kQuantizedRows = 2;
#endif
constexpr int kQuantizedVecs = 2;
constexpr int kStrip = static_cast<int>(kQuantizedVecs * kVecSize);  // outputs of a tile
constexpr int kStripsPerPanel = static_cast<int>(kQuantizedPanel) / kStrip;
// More tiles of rows than these are worth unpacking the weights for.
constexpr int64_t kMaxPackedTiles = 2;
// Weights are unpacked for so many groups and rows at a time, to stay in the cache.
constexpr int64_t kUnpackedGroups = 16;
constexpr int64_t kUnpackedRows = 96;
// How far ahead of its use a panel's data is asked for, in bytes.
constexpr int64_t kQuantizedPrefetch = 2048;

// The operands of one group, from a panel as it is packed. `column` counts outputs of the panel.
template <typename Format>
struct PackedWeights : Format {
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

// Adds the groups [begin, end), whole blocks, to sums [kRows][kPanels][32] (rows sum_stride apart).
// x: row r's groups are at x + r * x_stride. weight: of the first panel, whose next one lies
// panel_bytes further, at group `begin`.
template <typename Weights, int kRows, int kPanels>
void quantized_tile(const ActivationGroup* x, int64_t x_stride, const uint8_t* weight,
                    int64_t panel_bytes, int64_t begin, int64_t end, int64_t first_column,
                    float* sums, int64_t sum_stride) {
  constexpr int kVecs = kPanels * kQuantizedVecs;
  constexpr int kParts = Weights::kScalesPerGroup;
  const auto column = [&](int v) { return first_column + v % kQuantizedVecs * kVecSize; };
  const auto sum = [&](int r, int v) {
    return sums + r * sum_stride + v / kQuantizedVecs * kQuantizedPanel + column(v);
  };
  Vec acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = load(sum(r, v));
  }
  x += begin;
  for (int64_t block = begin; block < end; block += Weights::kBlockGroups) {
    const uint8_t* header = weight;
    const uint8_t* group = header + Weights::kHeaderBytes;
    for (int64_t i = 0; i < Weights::kBlockGroups; ++i, group += Weights::kGroupBytes, ++x) {
      if constexpr (kPanels > 1) {  // few rows: memory is what they wait for
        for (int p = 0; p < kPanels; ++p) {
          for (int64_t line = 0; line < Weights::kGroupBytes; line += 64) {
            __builtin_prefetch(group + p * panel_bytes + kQuantizedPrefetch + line, 0, 2);
          }
        }
      }
      unroll<kParts>([&](auto part) {
        Ints dots[kRows][kVecs];
        for (int r = 0; r < kRows; ++r) {
          const int32_t* offset = Weights::offset(x[r * x_stride], part);
          const Ints start = Weights::kZeroPoint ? broadcast_int(offset) : zero_ints();
          for (int v = 0; v < kVecs; ++v) dots[r][v] = start;
        }
        unroll<8 / kParts>([&](auto step) {
          constexpr int kQuad = part * (8 / kParts) + step;
          Bytes w[kVecs];
          for (int v = 0; v < kVecs; ++v) {
            w[v] = Weights::template quad_of<kQuad>(group + v / kQuantizedVecs * panel_bytes,
                                                    column(v));
          }
          for (int r = 0; r < kRows; ++r) {
            const Quad quad = broadcast_quad(x[r * x_stride].values + 4 * kQuad);
            for (int v = 0; v < kVecs; ++v) {
              dots[r][v] = dot<Weights::kBits>(dots[r][v], w[v], quad);
            }
          }
        });
        for (int v = 0; v < kVecs; ++v) {
          const int64_t shift = v / kQuantizedVecs * panel_bytes;
          const Vec scale = Weights::scales(header + shift, group + shift, part, column(v));
          for (int r = 0; r < kRows; ++r) {
            const Vec product = scale * broadcast(x[r * x_stride].scale);
            acc[r][v] = fma(to_floats(dots[r][v]), product, acc[r][v]);
          }
        }
      });
      if constexpr (Weights::kHasMins) {
        for (int v = 0; v < kVecs; ++v) {
          const int64_t shift = v / kQuantizedVecs * panel_bytes;
          const Vec min = Weights::mins(header + shift, group + shift, column(v));
          for (int r = 0; r < kRows; ++r) {
            acc[r][v] = fma(min, broadcast(x[r * x_stride].scaled_sum), acc[r][v]);
          }
        }
      }
    }
    weight += Weights::kBlockBytes;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(sum(r, v), acc[r][v]);
  }
}

// quantized_tile over all columns of the panels, for a number of rows that is known at run time
// only, up to kRows.
template <typename Weights, int kRows, int kPanels>
void quantized_rows(int64_t num_rows, const ActivationGroup* x, int64_t x_stride,
                    const uint8_t* weight, int64_t panel_bytes, int64_t begin, int64_t end,
                    float* sums, int64_t sum_stride) {
  if constexpr (kRows > 0) {
    if (num_rows < kRows) {
      quantized_rows<Weights, kRows - 1, kPanels>(num_rows, x, x_stride, weight, panel_bytes, begin,
                                                  end, sums, sum_stride);
      return;
    }
    for (int64_t strip = 0; strip < kStripsPerPanel; ++strip) {
      quantized_tile<Weights, kRows, kPanels>(x, x_stride, weight, panel_bytes, begin, end,
                                              strip * kStrip, sums, sum_stride);
    }
  }
}

// Rows of sums [num_rows][columns of whole panels] to y, from output `first` on.
template <typename T, typename Out>
void store_sums(const QuantizedLinearArgs<T, Out>& args, int64_t row, int64_t num_rows,
                int64_t first, int64_t num_columns, const float* sums) {
  for (int64_t r = 0; r < num_rows; ++r, sums += num_columns) {
    Out* y = args.y + (row + r) * args.y_stride + first;
    const int64_t size = std::min(num_columns, args.num_outputs - first);
    for (int64_t i = 0; i < size; i += kVecSize) {
      const int64_t n = std::min(kVecSize, size - i);
      Vec sum = load(sums + i);
      if (args.bias != nullptr) sum = sum + load_n(args.bias + first + i, n);
      if (n == kVecSize) {
        store(y + i, sum);
      } else {
        store_n(y + i, sum, n);
      }
    }
  }
}

// kPanels panels, one after the other tile of rows straight from the packed weights.
template <typename Format, int kRows, int kPanels, typename T, typename Out>
void few_rows(const QuantizedLinearArgs<T, Out>& args, int64_t panel) {
  const int64_t num_groups = args.num_inputs / kQuantizedGroup;
  const int64_t panel_bytes = Format::panel_bytes(args.num_inputs);
  for (int64_t row = 0; row < args.num_rows; row += kRows) {
    const int64_t num_rows = std::min<int64_t>(kRows, args.num_rows - row);
    alignas(64) float sums[kRows * kPanels * kQuantizedPanel] = {};
    quantized_rows<PackedWeights<Format>, kRows, kPanels>(
        num_rows, args.x + row * num_groups, num_groups, args.weight + panel * panel_bytes,
        panel_bytes, 0, num_groups, sums, kPanels * kQuantizedPanel);
    store_sums(args, row, num_rows, panel * kQuantizedPanel, kPanels * kQuantizedPanel, sums);
  }
}

// One panel, unpacked piece by piece, each of which many rows pass by.
template <typename Format, typename T, typename Out>
void many_rows(const QuantizedLinearArgs<T, Out>& args, int64_t panel) {
  using Unpacked = UnpackedWeights<Format>;
  const int64_t num_groups = args.num_inputs / kQuantizedGroup;
  const uint8_t* weight = args.weight + panel * Format::panel_bytes(args.num_inputs);
  alignas(64) uint8_t unpacked[kUnpackedGroups * Unpacked::kGroupBytes];
  alignas(64) float sums[kUnpackedRows * kQuantizedPanel];
  const int64_t num_parts = (args.num_rows + kUnpackedRows - 1) / kUnpackedRows;
  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t row = args.num_rows * part / num_parts;
    const int64_t num_rows = args.num_rows * (part + 1) / num_parts - row;
    std::fill_n(sums, num_rows * kQuantizedPanel, 0.0f);
    for (int64_t begin = 0; begin < num_groups; begin += kUnpackedGroups) {
      const int64_t end = std::min(num_groups, begin + kUnpackedGroups);
      for (int64_t g = begin; g < end; ++g) {
        const uint8_t* header = weight + g / Format::kBlockGroups * Format::kBlockBytes;
        const int64_t place = Format::kHeaderBytes + g % Format::kBlockGroups * Format::kGroupBytes;
        unpack_group<Format>(header, header + place,
                             unpacked + (g - begin) * Unpacked::kGroupBytes);
      }
      for (int64_t r = 0; r < num_rows; r += kQuantizedRows) {
        quantized_rows<Unpacked, kQuantizedRows, 1>(
            std::min<int64_t>(kQuantizedRows, num_rows - r), args.x + (row + r) * num_groups,
            num_groups, unpacked, 0, begin, end, sums + r * kQuantizedPanel, kQuantizedPanel);
      }
    }
    store_sums(args, row, num_rows, panel * kQuantizedPanel, kQuantizedPanel, sums);
  }
}

template <typename Format, typename T, typename Out>
void quantized_panels(const QuantizedLinearArgs<T, Out>& args, int64_t begin, int64_t end) {
  if (args.num_rows > kMaxPackedTiles * kQuantizedRows) {
    for (int64_t panel = begin; panel < end; ++panel) many_rows<Format>(args, panel);
    return;
  }
  int64_t panel = begin;
  if (args.num_rows <= 2) {
    constexpr int kPanels = static_cast<int>(kQuantizedPanelGroup);
    for (; panel + kPanels <= end; panel += kPanels) few_rows<Format, 2, kPanels>(args, panel);
  }
  for (; panel < end; ++panel) few_rows<Format, kQuantizedRows, 1>(args, panel);
}

template <typename T, typename Out>
void quantized_linear(const QuantizedLinearArgs<T, Out>& args, int64_t begin, int64_t end) {
  dispatch_packed_format(
      args.ggml_type, [&](auto format) { quantized_panels<decltype(format)>(args, begin, end); });
}
