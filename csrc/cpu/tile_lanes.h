// What a 32-bit lane of a tile holds, and how two tiles are multiplied. Included by
// kernel_table.inc inside a namespace, after vec.h.
//
// A tile is an array of lanes, kWidth elements each: one float32, or, where the processor has a dot
// product of bfloat16 pairs, two bfloat16 that are neighbours along the dimension that the product
// sums over. Lanes travel in a Vec as bits.

template <typename T>
struct TileLanes {
  static constexpr int64_t kWidth = 1;
  // The first n <= kVecSize * kWidth elements at p, of T or int8, as lanes; zeros after them.
  template <typename C>
  static Vec load_lanes(const C* p, int64_t n) {
    return n >= kVecSize ? load(p) : load_n(p, n);
  }
  // Writes lane i = rows[0][i], ..., rows[kWidth - 1][i] for i < n <= kVecSize * kWidth, in whole
  // vectors, zeros after n.
  template <typename C>
  static void interleave(const C* const* rows, int64_t n, float* tile) {
    store(tile, load_lanes(rows[0], n));
  }
  // Stores kVecSize elements, rounded to what a lane holds, and returns them as rounded.
  static Vec store_rounded(float* tile, int64_t i, Vec x) {
    store(tile + i, x);
    return x;
  }
  // The lanes of x with element `keep` (0 .. kWidth - 1) of each as it is, and 0 for the others.
  static Vec keep_element(Vec x, int64_t /*keep*/) { return x; }
  // 2^x, as exact as results of type T need it.
  static Vec weight(Vec x) { return sizeof(T) == 2 ? coarse_exp2(x) : exp2(x); }
  // c + the sum of a * b over the elements of a lane.
  static Vec dot(Vec a, Vec b, Vec c) { return fma(a, b, c); }
};

#if defined(PYENGINE_VEC_AVX512)
template <>
struct TileLanes<bfloat16> {
  static constexpr int64_t kWidth = 2;
  static Vec load_lanes(const bfloat16* p, int64_t n) {
    const __mmask32 lanes = n >= 2 * kVecSize ? ~0u : (1u << n) - 1;
    return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(lanes, p))};
  }
  static Vec load_lanes(const int8_t* p, int64_t n) {
    const __mmask32 lanes = n >= 2 * kVecSize ? ~0u : (1u << n) - 1;
    const __m256i x = _mm256_maskz_loadu_epi8(lanes, p);
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(x)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(x, 1)));
    return {(__m512)_mm512_cvtne2ps_pbh(high, low)};
  }
  template <typename C>
  static void interleave(const C* const* rows, int64_t n, float* tile) {
    // The bit for the row, then the column: 0, 32, 1, 33, ... and 16, 48, 17, 49, ...
    const __m512i low = _mm512_add_epi32(
        _mm512_set1_epi32(32 << 16),
        _mm512_mullo_epi32(
            _mm512_set1_epi32(0x00010001),
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
    const __m512i first = _mm512_castps_si512(load_lanes(rows[0], n).v);
    const __m512i second = _mm512_castps_si512(load_lanes(rows[1], n).v);
    store(tile, {_mm512_castsi512_ps(_mm512_permutex2var_epi16(first, low, second))});
    if (n <= kVecSize) return;
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(0x00100010));
    store(tile + kVecSize, {_mm512_castsi512_ps(_mm512_permutex2var_epi16(first, high, second))});
  }
  static Vec store_rounded(float* tile, int64_t i, Vec x) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(x.v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile + i / kWidth), rounded);
    return {widen(rounded)};
  }
  static Vec weight(Vec x) { return coarse_exp2(x); }
  static Vec keep_element(Vec x, int64_t keep) {
    const __m512i mask = _mm512_set1_epi32(keep == 0 ? 0x0000ffff : static_cast<int>(0xffff0000));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x.v), mask))};
  }
  static Vec dot(Vec a, Vec b, Vec c) {
    return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
  }
};
#endif

// Lays out kTileKeys rows of head_size elements as the lanes of [head_size / kWidth][kTileKeys],
// rounded up, a row per column. Asks for the lines of `next` as it reads those of `rows`: memory
// answers only so many requests at a time, so they are spread over the work.
template <typename T, typename C>
void transpose_rows(const C* const* rows, const C* const* next, int64_t head_size, float* tile) {
  constexpr int64_t kWidth = TileLanes<T>::kWidth;
  const int64_t lanes = (head_size + kWidth - 1) / kWidth;
  for (int64_t k = 0; k < kTileKeys; k += kVecSize) {
    for (int64_t i = 0; i < lanes; i += kVecSize) {
      const int64_t n = std::min(kVecSize * kWidth, head_size - i * kWidth);
      const int64_t num_lanes = std::min(kVecSize, lanes - i);
      Vec block[kVecSize];
      for (int64_t j = 0; j < kVecSize; ++j) {
        block[j] = TileLanes<T>::load_lanes(rows[k + j] + i * kWidth, n);
        __builtin_prefetch(next[k + j] + i * kWidth, 0, 2);
      }
      transpose(block);
      float* to = tile + i * kTileKeys + k;
      if (num_lanes == kVecSize) {
        for (int64_t j = 0; j < kVecSize; ++j) store(to + j * kTileKeys, block[j]);
      } else {
        for (int64_t j = 0; j < num_lanes; ++j) store(to + j * kTileKeys, block[j]);
      }
    }
  }
}

// Lays out kTileKeys rows as the lanes of [kTileKeys / kWidth][size], kWidth rows per lane; size is
// head_size, rounded up to whole vectors. Asks for `next` on the way, too.
template <typename T, typename C>
void interleave_rows(const C* const* rows, const C* const* next, int64_t head_size, int64_t size,
                     float* tile) {
  constexpr int64_t kWidth = TileLanes<T>::kWidth;
  for (int64_t k = 0; k < kTileKeys; k += kWidth) {
    for (int64_t i = 0; i < head_size; i += kVecSize * kWidth) {
      const C* from[kWidth];
      for (int64_t j = 0; j < kWidth; ++j) {
        from[j] = rows[k + j] + i;
        __builtin_prefetch(next[k + j] + i, 0, 2);
      }
      TileLanes<T>::interleave(from, std::min(kVecSize * kWidth, head_size - i), tile + i);
    }
    tile += size;
  }
}

// The registers of a multiplication: kTileRows x kTileCols vectors of sums, kTileCols vectors of b
// and a broadcast lane of a.
#if defined(PYENGINE_VEC_AVX512)
constexpr int64_t kTileRows = 6, kTileCols = 4;
#else
constexpr int64_t kTileRows = 4, kTileCols = 2;
#endif

// c[r][x] = (kAdd ? c[r][x] : 0) + the sum over lanes j of [begin, end), in order, of
// dot(a[r][j], b[j][x]), for R rows and C vectors of columns. A sum's order does not depend on R, C
// or its place in the tile.
template <typename Lanes, bool kAdd, int64_t R, int64_t C>
void multiply_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                    int64_t begin, int64_t end, float* c, int64_t c_stride) {
  Vec sums[R][C];
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t x = 0; x < C; ++x) {
      sums[r][x] = kAdd ? load(c + r * c_stride + x * kVecSize) : broadcast(0.0f);
    }
  }
  for (int64_t j = begin; j < end; ++j) {
    Vec column[C];
    for (int64_t x = 0; x < C; ++x) column[x] = load(b + j * b_stride + x * kVecSize);
    for (int64_t r = 0; r < R; ++r) {
      const Vec lane = broadcast(a[r * a_stride + j]);
      for (int64_t x = 0; x < C; ++x) sums[r][x] = Lanes::dot(lane, column[x], sums[r][x]);
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t x = 0; x < C; ++x) store(c + r * c_stride + x * kVecSize, sums[r][x]);
  }
}

template <typename Lanes, bool kAdd, int64_t R>
void multiply_rows(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   int64_t begin, int64_t end, float* c, int64_t c_stride, int64_t cols) {
  int64_t x = 0;
  for (; x + kTileCols * kVecSize <= cols; x += kTileCols * kVecSize) {
    multiply_block<Lanes, kAdd, R, kTileCols>(a, a_stride, b + x, b_stride, begin, end, c + x,
                                              c_stride);
  }
  for (; x < cols; x += kVecSize) {
    multiply_block<Lanes, kAdd, R, 1>(a, a_stride, b + x, b_stride, begin, end, c + x, c_stride);
  }
}

// The same for rows <= kTileRows and cols, a multiple of kVecSize.
template <typename Lanes, bool kAdd, int64_t R = kTileRows>
void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t begin,
              int64_t end, float* c, int64_t c_stride, int64_t rows, int64_t cols) {
  if constexpr (R > 1) {
    if (rows < R) {
      multiply<Lanes, kAdd, R - 1>(a, a_stride, b, b_stride, begin, end, c, c_stride, rows, cols);
      return;
    }
  }
  multiply_rows<Lanes, kAdd, R>(a, a_stride, b, b_stride, begin, end, c, c_stride, cols);
}
