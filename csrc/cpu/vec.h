// A vector of floats, one definition per instruction set, chosen by PYENGINE_VEC_*.
//
// No include guard and no includes: kernels_<isa>.cpp includes this file inside a namespace of its
// own, after the headers that it needs. All of them offer the same names:
//
//   Vec               kVecSize floats
//   load, store       whole vectors of float or bfloat16 (widened to float, rounded to nearest even)
//   load_n, store_n   the first n < kVecSize elements; lanes past n read as 0 and are not written
//   fma(a, b, c)      a * b + c, rounded once
//   exp               within 2 ulp over the range of float, 0 below it
//   sum, max_of       horizontal, in an order fixed by the lane, never by the data
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

#endif

// exp(x) = 2^n * exp(r) with n = round(x / ln 2): a polynomial of degree 7 for exp(r) on
// [-ln2/2, ln2/2], ln 2 split in two so that r is exact (Cody and Waite 1980).
inline Vec exp(Vec x) {
  const Vec clamped = min(max(x, broadcast(-104.0f)), broadcast(89.0f));
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
