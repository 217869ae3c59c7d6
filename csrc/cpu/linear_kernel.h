// y = x W^T + b over packed weights. Included by kernel_table.inc inside a namespace.
//
// Row invariance: an output element sums its products over k in ascending order into one
// accumulator (pairs of k for bfloat16, as the dot-product instruction takes them), whatever the
// number of rows, the place of a row in a tile, or the thread. K is never split.
//
// Packed weights, so that a panel streams through memory once, in the order of use:
//
//   float32    [N / 32][K][32]          element (n, k) at panel n / 32, k, lane n % 32
//   bfloat16   [N / 32][K / 2][32][2]   pairs (k, k + 1) side by side, 32 bits
//
// N and K are padded with zeros to whole panels and pairs.

// Rows of x that one tile takes: as many as leave registers for what is beside the accumulators.
#if defined(PYENGINE_VEC_AVX512)
template <typename T>
constexpr int kLinearRows = 12;
#elif defined(PYENGINE_VEC_AVX2)
template <typename T>
constexpr int kLinearRows = sizeof(T) == 2 ? 2 : 3;  // bfloat16 is widened on the way
#else
template <typename T>
constexpr int kLinearRows = 2;
#endif
// How far ahead of its use a panel's data is asked for, in bytes: the processor itself looks no
// further than the page that it reads.
constexpr int64_t kLinearPrefetch = 1024;
constexpr int kPanelVecs = static_cast<int>(kLinearPanel / kVecSize);

// How the two types step through K: float32 one k at a time, bfloat16 two.
inline Vec broadcast_step(const float* x) { return broadcast(*x); }
inline Vec multiply_add_step(Vec x, const float* w, Vec acc) { return fma(x, load(w), acc); }

#if defined(PYENGINE_VEC_AVX512)
// A pair of bfloat16 in each 32-bit lane; only its bits matter.
inline Vec broadcast_step(const bfloat16* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return {_mm512_castsi512_ps(_mm512_set1_epi32(pair))};
}
inline Vec multiply_add_step(Vec x, const bfloat16* w, Vec acc) {
  const __m512i weights = _mm512_loadu_si512(w);
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)weights, (__m512bh)_mm512_castps_si512(x.v))};
}
#elif defined(PYENGINE_VEC_AVX2)
inline Vec broadcast_step(const bfloat16* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return {_mm256_castsi256_ps(_mm256_set1_epi32(pair))};
}

// The bfloat16 with the lower index of each pair, or with the higher, as floats.
template <int kHalf>
Vec half_of(__m256i pairs) {
  return {_mm256_castsi256_ps(kHalf == 0 ? _mm256_slli_epi32(pairs, 16)
                                         : _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)))};
}

// One half of a step of a tile: a weight is widened once for all rows, an input once for all weights.
template <int kHalf, int kRows, int kVecs, typename InputsOf, typename WeightsOf>
void add_half(Vec (&acc)[kRows][kVecs], const InputsOf& inputs_of, const WeightsOf& weights_of) {
  Vec xs[kRows];
  for (int r = 0; r < kRows; ++r) xs[r] = half_of<kHalf>(_mm256_castps_si256(inputs_of(r).v));
  for (int v = 0; v < kVecs; ++v) {
    const auto* pairs = reinterpret_cast<const __m256i*>(weights_of(v));
    const Vec weights = half_of<kHalf>(_mm256_loadu_si256(pairs));
    for (int r = 0; r < kRows; ++r) acc[r][v] = fma(xs[r], weights, acc[r][v]);
  }
}
#else
inline Vec broadcast_step(const bfloat16* x) {
  return each_lane([&](int64_t i) { return to_float(x[i % 2]); });
}
inline Vec multiply_add_step(Vec x, const bfloat16* w, Vec acc) {
  return each_lane([&](int64_t i) {
    const float low = acc.v[i] + x.v[0] * to_float(w[2 * i]);
    return low + x.v[1] * to_float(w[2 * i + 1]);
  });
}
#endif

// The kRows rows from `row` on, times the kPanels panels from `panel` on.
template <int kRows, int kPanels, typename T, typename Out>
void linear_tile(const LinearArgs<T, Out>& args, int64_t row, int64_t panel) {
  constexpr int64_t kStep = kLinearStep<T>;
  constexpr int kVecs = kPanels * kPanelVecs;
  const int64_t num_steps = (args.num_inputs + kStep - 1) / kStep;
  const int64_t panel_size = num_steps * kStep * kLinearPanel;
  const T* w = args.weight + panel * panel_size;
  Vec acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = broadcast(0.0f);
  }
  const auto weights_of = [&](int v) {
    return w + v / kPanelVecs * panel_size + v % kPanelVecs * kVecSize * kStep;
  };
  const auto add_step = [&](const auto& inputs_of) {
#if defined(PYENGINE_VEC_AVX2)
    if constexpr (kStep == 2) {
      add_half<0>(acc, inputs_of, weights_of);
      add_half<1>(acc, inputs_of, weights_of);
    } else
#endif
    {
      for (int r = 0; r < kRows; ++r) {
        const Vec inputs = inputs_of(r);
        for (int v = 0; v < kVecs; ++v) {
          acc[r][v] = multiply_add_step(inputs, weights_of(v), acc[r][v]);
        }
      }
    }
  };
  const T* x = args.x + row * args.x_stride;
  const int64_t num_whole_steps = args.num_inputs / kStep;
  for (int64_t step = 0; step < num_whole_steps; ++step, w += kStep * kLinearPanel) {
    if constexpr (kPanels > 1) {  // few rows: memory is what they wait for
      for (int p = 0; p < kPanels; ++p) {
        const char* ahead = reinterpret_cast<const char*>(w + p * panel_size) + kLinearPrefetch;
        __builtin_prefetch(ahead, 0, 2);
        __builtin_prefetch(ahead + 64, 0, 2);
      }
    }
    add_step([&](int r) { return broadcast_step(x + r * args.x_stride + step * kStep); });
  }
  if (num_whole_steps < num_steps) {  // an odd K: the last pair is half
    add_step([&](int r) {
      const T last[kStep] = {x[r * args.x_stride + args.num_inputs - 1]};
      return broadcast_step(last);
    });
  }
  const int64_t first = panel * kLinearPanel;
  for (int r = 0; r < kRows; ++r) {
    Out* y = args.y + (row + r) * args.y_stride + first;
    for (int v = 0; v < kVecs; ++v) {
      const int64_t n = std::min<int64_t>(kVecSize, args.num_outputs - first - v * kVecSize);
      if (n <= 0) break;
      Vec sum = acc[r][v];
      if (args.bias != nullptr) {
        const T* bias = args.bias + first + v * kVecSize;
        sum = sum + (n == kVecSize ? load(bias) : load_n(bias, n));
      }
      if (n == kVecSize) {
        store(y + v * kVecSize, sum);
      } else {
        store_n(y + v * kVecSize, sum, n);
      }
    }
  }
}

// Panels [begin, end) of kRows rows. Few rows leave registers for several panels at a time, whose
// streams a core reads faster than one.
template <int kRows, typename T, typename Out>
void linear_panels(const LinearArgs<T, Out>& args, int64_t row, int64_t begin, int64_t end) {
  constexpr int kPanels = std::clamp<int>(kLinearRows<T> / kRows, 1, kLinearPanelGroup);
  int64_t panel = begin;
  for (; panel + kPanels <= end; panel += kPanels) linear_tile<kRows, kPanels>(args, row, panel);
  for (; panel < end; ++panel) linear_tile<kRows, 1>(args, row, panel);
}

// linear_panels for a number of rows that is known at run time only, up to kRows.
template <int kRows, typename T, typename Out>
void linear_rows(const LinearArgs<T, Out>& args, int64_t row, int64_t num_rows, int64_t begin,
                 int64_t end) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      linear_panels<kRows>(args, row, begin, end);
    } else {
      linear_rows<kRows - 1>(args, row, num_rows, begin, end);
    }
  }
}

// Panels [begin, end), all rows. Several tiles of rows pass by a panel while it is in the L2 cache;
// they are of about equal size, since a small one would wait for memory as long as a large one.
template <typename T, typename Out>
void linear(const LinearArgs<T, Out>& args, int64_t begin, int64_t end) {
  const int64_t num_tiles = (args.num_rows + kLinearRows<T> - 1) / kLinearRows<T>;
  const int64_t num_panels = num_tiles > 1 ? 1 : end - begin;
  for (int64_t panel = begin; panel < end; panel += num_panels) {
    int64_t row = 0;
    for (int64_t tile = 1; tile <= num_tiles; ++tile) {
      const int64_t end_row = args.num_rows * tile / num_tiles;
      linear_rows<kLinearRows<T>>(args, row, end_row - row, panel, panel + num_panels);
      row = end_row;
    }
  }
}
