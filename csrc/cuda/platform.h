// What kernels are written in: CUDA by nvcc, or its emulation on the CPU by a C++ compiler (tests).
// Pointers to memory that kernels share are Pointer<T>, which the emulation checks; what their
// threads share of a block's memory comes from SharedMemory.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "../testing/simt.h"
#endif

// A loop over what must be in registers, hence known to the compiler at each turn.
#ifdef __CUDACC__
#define PYENGINE_UNROLL _Pragma("unroll")
#else
#define PYENGINE_UNROLL
#endif

namespace pyengine {

constexpr int kWarpSize = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

template <typename T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

#ifdef __CUDACC__

template <typename T>
using Pointer = T*;

// The same memory as elements of another type.
template <typename Other, typename T>
__device__ __forceinline__ Other* cast(T* p) {
  return reinterpret_cast<Other*>(p);
}

#else

template <typename T>
using Pointer = simt::Pointer<T>;

template <typename Other, typename T>
simt::Pointer<Other> cast(simt::Pointer<T> p) {
  return p.template as<Other>();
}

#endif

// The dynamic shared memory of a block, dealt out in pieces. All threads take the same ones.
class SharedMemory {
 public:
  // `size` elements at a multiple of 16 bytes. What they hold is anything.
  template <typename T>
  __device__ __forceinline__ Pointer<T> take(int64_t size) {
    const int64_t begin = used_;
    used_ += bytes<T>(size);
#ifdef __CUDACC__
    extern __shared__ uint4 shared_memory[];
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(shared_memory) + begin);
#else
    auto& block = simt::Block::current();
    if (used_ > static_cast<int64_t>(block.shared_bytes())) simt::fail("takes more shared memory");
    T* const first = reinterpret_cast<T*>(block.shared_begin() + begin);
    return {first, first, first + size};
#endif
  }

  // What take<T>(size) uses up: a launch asks for the sum of its kernel's pieces.
  template <typename T>
  __host__ __device__ static constexpr int64_t bytes(int64_t size) {
    return (size * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
  }

 private:
  int64_t used_ = 0;
};

}  // namespace pyengine
