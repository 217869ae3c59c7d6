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
// More tiles of rows than these are worth unpacking the weights for.
constexpr int64_t kMaxPackedTiles = 2;
// Weights are unpacked for so many groups and rows at a time, to stay in the cache.
constexpr int64_t kUnpackedGroups = 16;
constexpr int64_t kUnpackedRows = 96;
// How far ahead of their use packed weights are asked for, in bytes: the processor itself looks no
// further than the page that it reads.
constexpr int64_t kQuantizedPrefetch = 4096;

// Adds num_groups groups, whole blocks, from x (rows x_stride apart) and `weight` on, to the columns
// of sums [kRows][32] from first_column on.
template <typename Weights, int kRows>
void quantized_tile(const ActivationGroup* x, int64_t x_stride, const uint8_t* weight,
                    int64_t num_groups, int64_t first_column, float* sums) {
  constexpr int kVecs = kQuantizedVecs;
  constexpr int kParts = Weights::kScalesPerGroup;
  const auto column = [&](int v) { return first_column + v * kVecSize; };
  const auto sum = [&](int r, int v) { return sums + r * kQuantizedPanel + column(v); };
  Vec acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = load(sum(r, v));
  }
  for (int64_t block = 0; block < num_groups; block += Weights::kBlockGroups) {
    const uint8_t* header = weight;
    const uint8_t* group = header + Weights::kHeaderBytes;
    for (int64_t i = 0; i < Weights::kBlockGroups; ++i, group += Weights::kGroupBytes, ++x) {
      if constexpr (Weights::kIsStreamed) {
        for (int64_t line = 0; line < Weights::kGroupBytes; line += 64) {
          __builtin_prefetch(group + kQuantizedPrefetch + line, 0, 2);
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
            w[v] = Weights::template quad_of<kQuad>(group, column(v));
          }
          for (int r = 0; r < kRows; ++r) {
            const Quad quad = broadcast_quad(x[r * x_stride].values + 4 * kQuad);
            for (int v = 0; v < kVecs; ++v) {
              dots[r][v] = dot<Weights::kBits>(dots[r][v], w[v], quad);
            }
          }
        });
        for (int v = 0; v < kVecs; ++v) {
          const Vec scale = Weights::scales(header, group, part, column(v));
          for (int r = 0; r < kRows; ++r) {
            const Vec product = scale * broadcast(x[r * x_stride].scale);
            acc[r][v] = fma(to_floats(dots[r][v]), product, acc[r][v]);
          }
        }
      });
      if constexpr (Weights::kHasMins) {
        for (int v = 0; v < kVecs; ++v) {
          const Vec min = Weights::mins(header, group, column(v));
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

// quantized_tile over all columns of a panel, for a number of rows that is known at run time only,
// up to kRows.
template <typename Weights, int kRows = kQuantizedRows>
void quantized_rows(int64_t num_rows, const ActivationGroup* x, int64_t x_stride,
                    const uint8_t* weight, int64_t num_groups, float* sums) {
  if constexpr (kRows > 0) {
    if (num_rows < kRows) {
      quantized_rows<Weights, kRows - 1>(num_rows, x, x_stride, weight, num_groups, sums);
      return;
    }
    for (int64_t column = 0; column < kQuantizedPanel; column += kQuantizedVecs * kVecSize) {
      quantized_tile<Weights, kRows>(x, x_stride, weight, num_groups, column, sums);
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

// One panel, its weights as they are packed.
template <typename Format, typename T, typename Out>
void few_rows(const QuantizedLinearArgs<T, Out>& args, int64_t panel) {
  const int64_t num_groups = args.num_inputs / kQuantizedGroup;
  const uint8_t* weight = args.weight + panel * Format::panel_bytes(args.num_inputs);
  for (int64_t row = 0; row < args.num_rows; row += kQuantizedRows) {
    const int64_t num_rows = std::min<int64_t>(kQuantizedRows, args.num_rows - row);
    alignas(64) float sums[kQuantizedRows * kQuantizedPanel] = {};
    quantized_rows<PackedWeights<Format>>(num_rows, args.x + row * num_groups, num_groups, weight,
                                          num_groups, sums);
    store_sums(args, row, num_rows, panel * kQuantizedPanel, sums);
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
      const int64_t size = std::min(kUnpackedGroups, num_groups - begin);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t g = begin + i;
        const uint8_t* header = weight + g / Format::kBlockGroups * Format::kBlockBytes;
        const int64_t place = Format::kHeaderBytes + g % Format::kBlockGroups * Format::kGroupBytes;
        unpack_group<Format>(header, header + place, unpacked + i * Unpacked::kGroupBytes);
      }
      for (int64_t r = 0; r < num_rows; r += kQuantizedRows) {
        quantized_rows<Unpacked>(std::min<int64_t>(kQuantizedRows, num_rows - r),
                                 args.x + (row + r) * num_groups + begin, num_groups, unpacked,
                                 size, sums + r * kQuantizedPanel);
      }
    }
    store_sums(args, row, num_rows, panel * kQuantizedPanel, sums);
  }
}

template <typename T, typename Out>
void quantized_linear(const QuantizedLinearArgs<T, Out>& args, int64_t begin, int64_t end) {
  dispatch_packed_format(args.ggml_type, [&](auto format) {
    using Format = decltype(format);
    for (int64_t panel = begin; panel < end; ++panel) {
      if (args.num_rows > kMaxPackedTiles * kQuantizedRows) {
        many_rows<Format>(args, panel);
      } else {
        few_rows<Format>(args, panel);
      }
    }
  });
}
