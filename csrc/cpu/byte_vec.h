// Vectors of small integers beside the floats of vec.h, whose rules hold here. Included by
// kernel_table.inc inside a namespace.
//
//   Bytes          4 * kVecSize unsigned bytes: four for each lane
//   Ints           kVecSize int32
//   Quad           four int8, the same ones for each lane
//   shift          each byte's bits up by `left` or down, those of its neighbours coming in
//   dot<bits>      acc + the four products of each lane, exact for unsigned bytes of so many bits
//   to_ints        floats within int32, rounded to nearest even
//   store_int8     the lanes, which are int8; returns their sum
//   load_half      kVecSize floats from float16; load_small from 8-bit integers

#if defined(PYENGINE_VEC_AVX512)

struct Bytes {
  __m512i v;
};
struct Ints {
  __m512i v;
};
struct Quad {
  __m512i v;
};

inline Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_bytes(uint8_t* p, Bytes x) { _mm512_storeu_si512(p, x.v); }
inline Bytes mask(Bytes x, int bits) {
  return {_mm512_and_si512(x.v, _mm512_set1_epi8(static_cast<char>(bits)))};
}
inline Bytes operator|(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int left>
Bytes shift(Bytes x) {
  if constexpr (left < 0) {
    return {_mm512_srli_epi16(x.v, -left)};
  } else {
    return {_mm512_slli_epi16(x.v, left)};
  }
}
inline Ints zero_ints() { return {_mm512_setzero_si512()}; }
inline Ints broadcast_int(const int32_t* p) { return {_mm512_set1_epi32(*p)}; }
inline Quad broadcast_quad(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return {_mm512_set1_epi32(quad)};
}
template <int bits>
Ints dot(Ints acc, Bytes w, Quad x) {
  return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)};
}
inline Vec to_floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Ints to_ints(Vec x) { return {_mm512_cvtps_epi32(x.v)}; }
inline int32_t store_int8(int8_t* p, Ints x) {
  const __m128i bytes = _mm512_cvtepi32_epi8(x.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  const __m128i shifted = _mm_xor_si128(bytes, _mm_set1_epi8(-128));  // 128 more, unsigned
  const __m128i sums = _mm_sad_epu8(shifted, _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 128 * 16;
}
inline Vec load_half(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec load_small(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}
inline Vec load_small(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

#elif defined(PYENGINE_VEC_AVX2)

struct Bytes {
  __m256i v;
};
struct Ints {
  __m256i v;
};
struct Quad {
  __m256i v;
};

inline Bytes load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline void store_bytes(uint8_t* p, Bytes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.v);
}
inline Bytes mask(Bytes x, int bits) {
  return {_mm256_and_si256(x.v, _mm256_set1_epi8(static_cast<char>(bits)))};
}
inline Bytes operator|(Bytes a, Bytes b) { return {_mm256_or_si256(a.v, b.v)}; }
template <int left>
Bytes shift(Bytes x) {
  if constexpr (left < 0) {
    return {_mm256_srli_epi16(x.v, -left)};
  } else {
    return {_mm256_slli_epi16(x.v, left)};
  }
}
inline Ints zero_ints() { return {_mm256_setzero_si256()}; }
inline Ints broadcast_int(const int32_t* p) { return {_mm256_set1_epi32(*p)}; }
inline Quad broadcast_quad(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return {_mm256_set1_epi32(quad)};
}
// Sums of two products fit 16 bits if the bytes have 7 bits: 2 * 127 * 127 < 2^15. The eighth bits
// have products of their own.
template <int bits>
Ints dot(Ints acc, Bytes w, Quad x) {
  const __m256i low = bits < 8 ? w.v : mask(w, 0x7f).v;
  const __m256i pairs = _mm256_maddubs_epi16(low, x.v);
  acc.v = _mm256_add_epi32(acc.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  if constexpr (bits == 8) {
    const __m256i high_pairs = _mm256_maddubs_epi16(mask(shift<-7>(w), 1).v, x.v);
    acc.v = _mm256_add_epi32(acc.v, _mm256_madd_epi16(high_pairs, _mm256_set1_epi16(128)));
  }
  return acc;
}
inline Vec to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.v)}; }
inline Ints to_ints(Vec x) { return {_mm256_cvtps_epi32(x.v)}; }
inline int32_t store_int8(int8_t* p, Ints x) {
  const __m256i low_bytes = _mm256_shuffle_epi8(x.v, _mm256_set1_epi32(0x0c080400));
  const __m128i low = _mm256_castsi256_si128(low_bytes);
  const __m128i high = _mm256_extracti128_si256(low_bytes, 1);
  const __m128i bytes = _mm_unpacklo_epi32(low, high);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes);
  const __m128i shifted = _mm_xor_si128(bytes, _mm_set1_epi8(-128));  // 128 more, unsigned
  return _mm_cvtsi128_si32(_mm_sad_epu8(shifted, _mm_setzero_si128())) - 128 * 8;
}
inline Vec load_half(const uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Vec load_small(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))};
}
inline Vec load_small(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}

#else

struct Bytes {
  uint8_t v[4 * kVecSize];
};
struct Ints {
  int32_t v[kVecSize];
};
struct Quad {
  int8_t v[4];
};

inline Bytes load_bytes(const uint8_t* p) {
  Bytes x;
  std::memcpy(x.v, p, sizeof x.v);
  return x;
}
inline void store_bytes(uint8_t* p, Bytes x) { std::memcpy(p, x.v, sizeof x.v); }
inline Bytes mask(Bytes x, int bits) {
  for (uint8_t& byte : x.v) byte = static_cast<uint8_t>(byte & bits);
  return x;
}
inline Bytes operator|(Bytes a, Bytes b) {
  for (int64_t i = 0; i < 4 * kVecSize; ++i) a.v[i] = static_cast<uint8_t>(a.v[i] | b.v[i]);
  return a;
}
template <int left>
Bytes shift(Bytes x) {
  for (uint8_t& byte : x.v) {
    byte = static_cast<uint8_t>((byte << std::max(left, 0)) >> std::max(-left, 0));
  }
  return x;
}
inline Ints zero_ints() { return {}; }
inline Ints broadcast_int(const int32_t* p) {
  Ints x;
  for (int32_t& lane : x.v) lane = *p;
  return x;
}
inline Quad broadcast_quad(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
template <int bits>
Ints dot(Ints acc, Bytes w, Quad x) {
  for (int64_t i = 0; i < kVecSize; ++i) {
    for (int j = 0; j < 4; ++j) acc.v[i] += w.v[4 * i + j] * x.v[j];
  }
  return acc;
}
inline Ints to_ints(Vec x) {
  Ints ints;
  for (int64_t i = 0; i < kVecSize; ++i) ints.v[i] = static_cast<int32_t>(std::nearbyintf(x.v[i]));
  return ints;
}
inline int32_t store_int8(int8_t* p, Ints x) {
  int32_t sum = 0;
  for (int64_t i = 0; i < kVecSize; ++i) {
    p[i] = static_cast<int8_t>(x.v[i]);
    sum += x.v[i];
  }
  return sum;
}
inline Vec to_floats(Ints x) {
  return each_lane([&](int64_t i) { return static_cast<float>(x.v[i]); });
}
inline Vec load_half(const uint8_t* p) {
  return each_lane([&](int64_t i) { return half_to_float(p + 2 * i); });
}
inline Vec load_small(const uint8_t* p) {
  return each_lane([&](int64_t i) { return static_cast<float>(p[i]); });
}
inline Vec load_small(const int8_t* p) {
  return each_lane([&](int64_t i) { return static_cast<float>(p[i]); });
}

#endif
