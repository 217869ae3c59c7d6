// A vector of floats, one definition per instruction set, chosen by PYENGINE_VEC_*.
//
// No include guard and no includes: kernels_<isa>.cpp includes this file inside a namespace of its
// own, after the headers that it needs. All of them offer the same names:
//
//   Vec               kVecSize floats
//   load, store       whole vectors of float, bfloat16 (widened to float, rounded to nearest even)
//                     or int8 (whole numbers, rounded to nearest even, at most 127 in magnitude)
//   load_n, store_n   the first n < kVecSize elements; lanes past n read as 0 and are not written
//   fma(a, b, c)      a * b + c, rounded once
//   exp               within 2 ulp over the range of float, 0 below it
//   exp2              the same for powers of 2
//   coarse_exp2       within 2^-18, exact for whole numbers
//   tanh              within 4 ulp
//   transpose         kVecSize vectors as the rows of a square
//   sum, max_of       horizontal, in an order fixed by the lane, never by the data
//   any_greater(a, b) whether a > b in any lane
//
// A row's arithmetic must not depend on where the row lies, so a tail goes through load_n and
// store_n with the same operations as a whole vector, never through a scalar loop of its own.

#if defined(PYENGINE_VEC_AVX512)

constexpr int64_t kVecSize = 16;

struct Vec {
  __m512 v;
};

inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline __m512 widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
inline void store_n(float* p, Vec x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }
inline Vec load(const bfloat16* p) {
  return {widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec load_n(const bfloat16* p, int64_t n) {
  return {widen(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
inline void store(bfloat16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x.v));
}
inline void store_n(bfloat16* p, Vec x, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), (__m256i)_mm512_cvtneps_pbh(x.v));
}
inline Vec load(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x))};
}
inline Vec load_n(const int8_t* p, int64_t n) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p)))};
}
inline void store(int8_t* p, Vec x) {
  const __m128i codes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), codes);
}
inline void store_n(int8_t* p, Vec x, int64_t n) {
  _mm_mask_storeu_epi8(p, first_lanes(n), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
// a * 2^n for integral n in [-252, 252].
inline Vec scale_by_power(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float max_of(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline bool any_greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
inline void transpose(Vec (&rows)[kVecSize]) {
  __m512 a[kVecSize], b[kVecSize];
  for (int i = 0; i < 16; i += 2) {  // pairs of rows
    a[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
    a[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {  // fours
    for (int j = 0; j < 2; ++j) {
      const __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + j + 2]);
      b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  for (int i = 0; i < 16; i += 8) {  // eights
    for (int j = 0; j < 4; ++j) {
      a[i + j] = _mm512_shuffle_f32x4(b[i + j], b[i + j + 4], 0x88);
      a[i + j + 4] = _mm512_shuffle_f32x4(b[i + j], b[i + j + 4], 0xdd);
    }
  }
  for (int j = 0; j < 8; ++j) {
    rows[j].v = _mm512_shuffle_f32x4(a[j], a[j + 8], 0x88);
    rows[j + 8].v = _mm512_shuffle_f32x4(a[j], a[j + 8], 0xdd);
  }
}

#elif defined(PYENGINE_VEC_AVX2)

constexpr int64_t kVecSize = 8;

struct Vec {
  __m256 v;
};

inline Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec load_n(const float* p, int64_t n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x.v); }
inline void store_n(float* p, Vec x, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x.v); }
inline Vec load(const bfloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
inline Vec load_n(const bfloat16* p, int64_t n) {
  bfloat16 lanes[kVecSize] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof *p);
  return load(lanes);
}
inline void store(bfloat16* p, Vec x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
  const __m256i halves = _mm256_blendv_epi8(rounded, quiet, is_nan);
  const __m256i packed = _mm256_packus_epi32(halves, halves);
  const __m256i ordered = _mm256_permute4x64_epi64(packed, 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(ordered));
}
inline void store_n(bfloat16* p, Vec x, int64_t n) {
  bfloat16 lanes[kVecSize];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof *p);
}
inline Vec load(const int8_t* p) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x))};
}
inline Vec load_n(const int8_t* p, int64_t n) {
  int8_t lanes[kVecSize] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n));
  return load(lanes);
}
inline void store(int8_t* p, Vec x) {
  const __m256i whole = _mm256_cvtps_epi32(x.v);
  const __m128i halves =
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
}
inline void store_n(int8_t* p, Vec x, int64_t n) {
  int8_t lanes[kVecSize];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n));
}

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral n in [-252, 252], in two steps, so that each power is a normal number.
inline Vec scale_by_power(Vec a, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 p = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 q = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, p), q)};
}
inline float sum(Vec a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_of(Vec a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline bool any_greater(Vec a, Vec b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0;
}
inline void transpose(Vec (&rows)[kVecSize]) {
  __m256 a[kVecSize], b[kVecSize];
  for (int i = 0; i < 8; i += 2) {  // pairs of rows
    a[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
    a[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {  // fours
    for (int j = 0; j < 2; ++j) {
      const __m256d low = _mm256_castps_pd(a[i + j]), high = _mm256_castps_pd(a[i + j + 2]);
      b[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
      b[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
    }
  }
  for (int j = 0; j < 4; ++j) {
    rows[j].v = _mm256_permute2f128_ps(b[j], b[j + 4], 0x20);
    rows[j + 4].v = _mm256_permute2f128_ps(b[j], b[j + 4], 0x31);
  }
}

#else  // portable: eight lanes in an array, for the compiler's own vectors

constexpr int64_t kVecSize = 8;

struct Vec {
  float v[kVecSize];
};

template <typename F>
inline Vec each_lane(F f) {
  Vec r;
  for (int64_t i = 0; i < kVecSize; ++i) r.v[i] = f(i);
  return r;
}

inline Vec broadcast(float x) {
  return each_lane([&](int64_t) { return x; });
}
template <typename T>
inline Vec load(const T* p) {
  return each_lane([&](int64_t i) { return to_float(p[i]); });
}
template <typename T>
inline Vec load_n(const T* p, int64_t n) {
  return each_lane([&](int64_t i) { return i < n ? to_float(p[i]) : 0.0f; });
}
template <typename T>
inline void store(T* p, Vec x) {
  for (int64_t i = 0; i < kVecSize; ++i) p[i] = from_float<T>(x.v[i]);
}
template <typename T>
inline void store_n(T* p, Vec x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = from_float<T>(x.v[i]);
}

inline Vec operator+(Vec a, Vec b) {
  return each_lane([&](int64_t i) { return a.v[i] + b.v[i]; });
}
inline Vec operator-(Vec a, Vec b) {
  return each_lane([&](int64_t i) { return a.v[i] - b.v[i]; });
}
inline Vec operator*(Vec a, Vec b) {
  return each_lane([&](int64_t i) { return a.v[i] * b.v[i]; });
}
inline Vec operator/(Vec a, Vec b) {
  return each_lane([&](int64_t i) { return a.v[i] / b.v[i]; });
}
// The baseline has no fused multiply-add and a library call per lane would crawl: two roundings,
// always the same two (the build sets -ffp-contract=off).
inline Vec fma(Vec a, Vec b, Vec c) {
  return each_lane([&](int64_t i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline Vec max(Vec a, Vec b) {
  return each_lane([&](int64_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec min(Vec a, Vec b) {
  return each_lane([&](int64_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec round(Vec a) {
  return each_lane([&](int64_t i) { return std::nearbyintf(a.v[i]); });
}
// a * 2^n for integral n in [-252, 252], in two steps, so that each power is a normal number.
inline Vec scale_by_power(Vec a, Vec n) {
  return each_lane([&](int64_t i) {
    const int32_t whole = static_cast<int32_t>(n.v[i]);
    const int32_t half = whole >> 1;
    const uint32_t p_bits = static_cast<uint32_t>(half + 127) << 23;
    const uint32_t q_bits = static_cast<uint32_t>(whole - half + 127) << 23;
    float p, q;
    std::memcpy(&p, &p_bits, sizeof p);
    std::memcpy(&q, &q_bits, sizeof q);
    return a.v[i] * p * q;
  });
}
inline float sum(Vec a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
inline float max_of(Vec a) {
  float m = a.v[0];
  for (int64_t i = 1; i < kVecSize; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
inline bool any_greater(Vec a, Vec b) {
  bool any = false;
  for (int64_t i = 0; i < kVecSize; ++i) any = any || a.v[i] > b.v[i];
  return any;
}
inline void transpose(Vec (&rows)[kVecSize]) {
  for (int64_t i = 0; i < kVecSize; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      const float x = rows[i].v[j];
      rows[i].v[j] = rows[j].v[i];
      rows[j].v[i] = x;
    }
  }
}

#endif

// exp(x) = 2^n * exp(r) with n = round(x / ln 2): a polynomial of degree 7 for exp(r) on
// [-ln2/2, ln2/2], ln 2 split in two so that r is exact (Cody and Waite 1980).
inline Vec exp(Vec x) {
  // max and min return their second argument when one is NaN: a NaN stays one.
  const Vec clamped = min(broadcast(89.0f), max(broadcast(-104.0f), x));
  const Vec n = round(clamped * broadcast(1.44269504f));
  Vec r = fma(n, broadcast(-0.693359375f), clamped);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.98412698e-4f);
  p = fma(p, r, broadcast(1.38888889e-3f));
  p = fma(p, r, broadcast(8.33333333e-3f));
  p = fma(p, r, broadcast(4.16666667e-2f));
  p = fma(p, r, broadcast(1.66666667e-1f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return scale_by_power(p, n);
}

// exp2(x) = 2^n * exp(f ln 2) with n = round(x) and f = x - n, by the same polynomial.
inline Vec exp2(Vec x) {
  const Vec clamped = min(broadcast(128.0f), max(broadcast(-160.0f), x));
  const Vec n = round(clamped);
  const Vec r = (clamped - n) * broadcast(0.693147181f);
  Vec p = broadcast(1.98412698e-4f);
  p = fma(p, r, broadcast(1.38888889e-3f));
  p = fma(p, r, broadcast(8.33333333e-3f));
  p = fma(p, r, broadcast(4.16666667e-2f));
  p = fma(p, r, broadcast(1.66666667e-1f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return scale_by_power(p, n);
}

// The same by a polynomial of degree 4 for 2^f, with the least relative error that such a one
// with 2^0 = 1 has on [-1/2, 1/2] (fitted by Lawson's algorithm): enough for what is rounded to
// bfloat16 next. x must not be above 128.
inline Vec coarse_exp2(Vec x) {
  const Vec clamped = max(broadcast(-160.0f), x);
  const Vec n = round(clamped);
  const Vec f = clamped - n;
  Vec p = broadcast(9.58285481e-3f);
  p = fma(p, f, broadcast(5.59064299e-2f));
  p = fma(p, f, broadcast(2.40240991e-1f));
  p = fma(p, f, broadcast(6.93124175e-1f));
  p = fma(p, f, broadcast(1.0f));
  return scale_by_power(p, n);
}

// tanh(x) = u / (u + 2) with u = exp(2x) - 1, and u = 2^n * (exp(r) - 1) + (2^n - 1), n and r as in
// exp, so that nothing cancels near 0. Beyond 10 the result is 1 to the last bit.
inline Vec tanh(Vec x) {
  const Vec doubled = min(broadcast(20.0f), max(broadcast(-20.0f), x + x));
  const Vec n = round(doubled * broadcast(1.44269504f));
  Vec r = fma(n, broadcast(-0.693359375f), doubled);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.98412698e-4f);
  p = fma(p, r, broadcast(1.38888889e-3f));
  p = fma(p, r, broadcast(8.33333333e-3f));
  p = fma(p, r, broadcast(4.16666667e-2f));
  p = fma(p, r, broadcast(1.66666667e-1f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p * r, r, r);
  const Vec one = broadcast(1.0f), power = scale_by_power(one, n);
  const Vec u = fma(p, power, power - one);
  return u / (u + broadcast(2.0f));
}
