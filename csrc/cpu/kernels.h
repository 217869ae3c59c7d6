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

template <typename T>
struct DequantizeArgs {
  int64_t ggml_type;    // one of kGgmlTypes
  const uint8_t* data;  // [rows, row_bytes]
  int64_t row_bytes;
  T* out;  // [rows, row_size]
  int64_t row_size;
};

// Tokens of a row of logits are looked at in blocks of this size.
constexpr int64_t kLogitsBlock = 128;

// The weight of a token is exp((logit - max) / temperature) if its logit is greater than
// `threshold`, or equal to it and the token comes before `end_of_ties`; else 0.
struct SoftmaxArgs {
  float max;
  float temperature;
  float threshold;
  int64_t end_of_ties;  // an index into the run of tokens; may lie outside of it
};

// Kernels that exist for each activation type T.
template <typename T>
struct TypedKernels {
  void (*silu_and_mul)(const SiluAndMulArgs<T>&, int64_t begin_row, int64_t end_row);
  void (*dequantize)(const DequantizeArgs<T>&, int64_t begin_row, int64_t end_row);
};

struct Kernels {
  TypedKernels<float> f32;
  TypedKernels<bfloat16> bf16;
  // The greatest logit of each block of kLogitsBlock, -inf if it holds only NaN.
  void (*block_maxima)(const float* logits, int64_t size, float* maxima);
  // Weights of `size` tokens; returns their sum.
  double (*softmax_weights)(const SoftmaxArgs&, const float* logits, int64_t size, float* weights);

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
