// The element types of kernels, and how they become float32 and back.
#pragma once

#include "../dispatch.h"
#include "platform.h"

#include <bit>

namespace pyengine {

// Storage of an IEEE half-precision number.
struct float16 {
  uint16_t bits;
};

__host__ __device__ __forceinline__ float to_float(float16 x) {
#ifdef __CUDACC__
  return __half2float(__ushort_as_half(x.bits));
#else
  return static_cast<float>(std::bit_cast<_Float16>(x.bits));
#endif
}

// Rounds to nearest even; beyond the greatest, infinity.
template <>
__host__ __device__ __forceinline__ float16 from_float<float16>(float x) {
#ifdef __CUDACC__
  return {__half_as_ushort(__float2half_rn(x))};
#else
  return {std::bit_cast<uint16_t>(static_cast<_Float16>(x))};
#endif
}

// 2^x, to two units in the last place; 1 for 0, 0 for -infinity.
__device__ __forceinline__ float exp2_of(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

// Sixteen bytes of neighbouring elements: what a thread loads and stores at once.
template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  T elements[kSize];
};

// The first `n` of the elements at p, and zeros for the others. With `is_aligned`, p is a multiple
// of 16 bytes.
template <typename T>
__device__ __forceinline__ Vector<T> load_vector(Pointer<const T> p, int64_t n, bool is_aligned) {
  if (is_aligned && n >= Vector<T>::kSize) return *cast<const Vector<T>>(p);
  Vector<T> v{};
  PYENGINE_UNROLL
  for (int i = 0; i < Vector<T>::kSize; ++i) {
    if (i < n) v.elements[i] = p[i];
  }
  return v;
}

template <typename T>
__device__ __forceinline__ void store_vector(Pointer<T> p, const Vector<T>& v, int64_t n,
                                             bool is_aligned) {
  if (is_aligned && n >= Vector<T>::kSize) {
    *cast<Vector<T>>(p) = v;
    return;
  }
  PYENGINE_UNROLL
  for (int i = 0; i < Vector<T>::kSize; ++i) {
    if (i < n) p[i] = v.elements[i];
  }
}

}  // namespace pyengine
