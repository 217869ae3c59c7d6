// The table of CPU kernels, filled once per instruction set (kernels_<isa>.cpp) and chosen at
// run time (isa.h). Arguments are plain structs of pointers and sizes; a kernel handles the
// half-open range of work items [begin, end) that a thread was given. Nothing here knows torch.
#pragma once

#include <cstdint>

#include "../dispatch.h"

namespace pyengine {

template <typename T>
struct SiluAndMulArgs {
  const T* x;  // [rows, 2 * size]
  T* out;      // [rows, size]
  int64_t size;
};

// Kernels that exist for each activation type T.
template <typename T>
struct TypedKernels {
  void (*silu_and_mul)(const SiluAndMulArgs<T>&, int64_t begin_row, int64_t end_row);
};

struct Kernels {
  TypedKernels<float> f32;
  TypedKernels<bfloat16> bf16;

  template <typename T>
  const TypedKernels<T>& typed() const;
};

template <>
inline const TypedKernels<float>& Kernels::typed<float>() const {
  return f32;
}

template <>
inline const TypedKernels<bfloat16>& Kernels::typed<bfloat16>() const {
  return bf16;
}

extern const Kernels kKernelsPortable;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

}  // namespace pyengine
