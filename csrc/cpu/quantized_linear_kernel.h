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
// How far ahead of their use packed weights are asked for, in bytes: the processor itself looks no
// further than the page that it reads.
constexpr int64_t kQuantizedPrefetch = 4096;

// Calls body(integral_constant) for each of [0, n).
template <int n, typename Body>
inline __attribute__((always_inline)) void unroll(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, n>{});
}

// The products of kRows rows of x, num_groups groups each, with the outputs of kPanels panels,
// panel_stride bytes apart, from column first_column of each on, to the same columns of sums
// [kPanels][kRows][32].
template <typename Format, int kRows, int kPanels>
void quantized_tile(const ActivationGroup* x, int64_t num_groups, const uint8_t* panel,
                    int64_t panel_stride, int64_t first_column, float* sums) {
  using Weights = PackedWeights<Format>;
  constexpr int kVecs = kPanels * kQuantizedVecs;
  constexpr int kParts = Format::kScalesPerGroup;
  const auto at = [&](const uint8_t* p, int v) { return p + v / kQuantizedVecs * panel_stride; };
  const auto column = [&](int v) { return first_column + v % kQuantizedVecs * kVecSize; };
  Vec acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = broadcast(0.0f);
  }
  for (int64_t block = 0; block < num_groups; block += Format::kBlockGroups) {
    const uint8_t* header = panel;
    const uint8_t* group = header + Format::kHeaderBytes;
    for (int64_t i = 0; i < Format::kBlockGroups; ++i, group += Format::kGroupBytes, ++x) {
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* ahead = group + p * panel_stride + kQuantizedPrefetch;
        for (int64_t line = 0; line < Format::kGroupBytes; line += 64) {
          __builtin_prefetch(ahead + line, 0, 2);
        }
      }
      unroll<kParts>([&](auto part) {
        Ints dots[kRows][kVecs];
        for (int r = 0; r < kRows; ++r) {
          const int32_t* offset = Format::offset(x[r * num_groups], part);
          const Ints start = Format::kZeroPoint ? broadcast_int(offset) : zero_ints();
          for (int v = 0; v < kVecs; ++v) dots[r][v] = start;
        }
        unroll<8 / kParts>([&](auto step) {
          constexpr int kQuad = part * (8 / kParts) + step;
          Bytes w[kVecs];
          for (int v = 0; v < kVecs; ++v) {
            w[v] = Weights::template quad_of<kQuad>(at(group, v), column(v));
          }
          for (int r = 0; r < kRows; ++r) {
            const Quad quad = broadcast_quad(x[r * num_groups].values + 4 * kQuad);
            for (int v = 0; v < kVecs; ++v) {
              dots[r][v] = dot<Format::kBits>(dots[r][v], w[v], quad);
            }
          }
        });
        for (int v = 0; v < kVecs; ++v) {
          const Vec scale = Weights::scales(at(header, v), at(group, v), part, column(v));
          for (int r = 0; r < kRows; ++r) {
            const Vec product = scale * broadcast(x[r * num_groups].scale);
            acc[r][v] = fma(to_floats(dots[r][v]), product, acc[r][v]);
          }
        }
      });
      if constexpr (Format::kHasMins) {
        for (int v = 0; v < kVecs; ++v) {
          const Vec min = Weights::mins(at(header, v), at(group, v), column(v));
          for (int r = 0; r < kRows; ++r) {
            acc[r][v] = fma(min, broadcast(x[r * num_groups].scaled_sum), acc[r][v]);
          }
        }
      }
    }
    panel += Format::kBlockBytes;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      store(sums + (v / kQuantizedVecs * kRows + r) * kQuantizedPanel + column(v), acc[r][v]);
    }
  }
}

// Rows of sums [num_rows][32] to y, from output `first` on.
template <typename T, typename Out>
void store_sums(const QuantizedLinearArgs<T, Out>& args, int64_t row, int64_t num_rows,
                int64_t first, const float* sums) {
  const int64_t size = std::min(kQuantizedPanel, args.num_outputs - first);
  for (int64_t r = 0; r < num_rows; ++r, sums += kQuantizedPanel) {
    Out* y = args.y + (row + r) * args.y_stride + first;
    for (int64_t i = 0; i < size; i += kVecSize) {
      const int64_t n = std::min(kVecSize, size - i);
      Vec sum = load(sums + i);
      if (args.bias != nullptr) {
        const T* bias = args.bias + first + i;
        sum = sum + (n == kVecSize ? load(bias) : load_n(bias, n));
      }
      if (n == kVecSize) {
        store(y + i, sum);
      } else {
        store_n(y + i, sum, n);
      }
    }
  }
}

// kRows rows from `row` on, times kPanels panels: `panel` and those panel_step apart.
template <typename Format, int kRows, int kPanels, typename T, typename Out>
void quantized_panels(const QuantizedLinearArgs<T, Out>& args, int64_t row, int64_t panel,
                      int64_t panel_step) {
  const int64_t num_groups = args.num_inputs / kQuantizedGroup;
  const int64_t panel_bytes = Format::panel_bytes(args.num_inputs);
  alignas(64) float sums[kPanels * kRows * kQuantizedPanel];
  for (int64_t column = 0; column < kQuantizedPanel; column += kQuantizedVecs * kVecSize) {
    quantized_tile<Format, kRows, kPanels>(args.x + row * num_groups, num_groups,
                                           args.weight + panel * panel_bytes,
                                           panel_step * panel_bytes, column, sums);
  }
  for (int p = 0; p < kPanels; ++p) {
    store_sums(args, row, kRows, (panel + p * panel_step) * kQuantizedPanel,
               sums + p * kRows * kQuantizedPanel);
  }
}

// Panels [begin, end) of a number of rows that is known at run time only, up to kRows. Few rows
// leave registers for two panels at a time, one from each half, so that both streams go on from
// panel to panel: a core reads two faster than one.
template <typename Format, int kRows = kQuantizedRows, typename T, typename Out>
void quantized_rows(const QuantizedLinearArgs<T, Out>& args, int64_t row, int64_t num_rows,
                    int64_t begin, int64_t end) {
  if constexpr (kRows > 0) {
    if (num_rows < kRows) {
      quantized_rows<Format, kRows - 1>(args, row, num_rows, begin, end);
      return;
    }
    int64_t panel = begin;
    if constexpr (2 * kRows <= kQuantizedRows) {
      const int64_t half = (end - begin) / 2;
      for (; panel < begin + half; ++panel) {
        quantized_panels<Format, kRows, 2>(args, row, panel, half);
      }
      panel += half;
    }
    for (; panel < end; ++panel) quantized_panels<Format, kRows, 1>(args, row, panel, 0);
  }
}

// Panels [begin, end), all rows. All tiles of rows pass by a panel while it is in the cache. To
// unpack it for them once doesn't pay: shifts and masks find room beside the products, and unpacked
// weights would crowd the cache.
template <typename T, typename Out>
void quantized_linear(const QuantizedLinearArgs<T, Out>& args, int64_t begin, int64_t end) {
  const int64_t num_panels = args.num_rows > kQuantizedRows ? 1 : end - begin;
  dispatch_packed_format(args.ggml_type, [&](auto format) {
    for (int64_t panel = begin; panel < end; panel += num_panels) {
      for (int64_t row = 0; row < args.num_rows; row += kQuantizedRows) {
        const int64_t num_rows = std::min<int64_t>(kQuantizedRows, args.num_rows - row);
        quantized_rows<decltype(format)>(args, row, num_rows, panel, panel + num_panels);
      }
    }
  });
}
