// What the backends are compiled for: element types and their C++ representation.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define PYENGINE_ANYWHERE __host__ __device__
#else
#define PYENGINE_ANYWHERE
#endif

namespace pyengine {

// The largest head size of the attention kernels.
constexpr int64_t kMaxHeadSize = 256;

// Storage of a bfloat16: the upper half of a float32.
struct bfloat16 {
  uint16_t bits;
};

PYENGINE_ANYWHERE inline float to_float(float x) { return x; }

PYENGINE_ANYWHERE inline float to_float(int8_t x) { return x; }

PYENGINE_ANYWHERE inline float to_float(bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

template <typename T>
PYENGINE_ANYWHERE T from_float(float x);

template <>
PYENGINE_ANYWHERE inline float from_float<float>(float x) {
  return x;
}

// Rounds to nearest even within [-127, 127]; what a NaN becomes is not promised.
template <>
PYENGINE_ANYWHERE inline int8_t from_float<int8_t>(float x) {
  const float clamped = x > -127.0f ? (x < 127.0f ? x : 127.0f) : -127.0f;
  return static_cast<int8_t>(std::nearbyintf(clamped));
}

// Rounds to nearest even; a NaN stays a (quiet) NaN.
template <>
PYENGINE_ANYWHERE inline bfloat16 from_float<bfloat16>(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return bfloat16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return bfloat16{static_cast<uint16_t>(bits >> 16)};
}

}  // namespace pyengine
