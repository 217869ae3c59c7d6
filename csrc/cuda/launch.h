// From an operator to its kernels: arguments, launch, registration. For nvcc and for the emulation.
#pragma once

#include "../op_checks.h"
#include "../ops.h"
#include "numbers.h"
#include "platform.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#ifdef __CUDACC__
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#endif

// Registers implementations: PYENGINE_CUDA_OPS(m) { m.impl("name", TORCH_BOX(&function)); }
#ifdef __CUDACC__
#define PYENGINE_CUDA_OPS(m) STABLE_TORCH_LIBRARY_IMPL(pyengine, CUDA, m)
#else
#define PYENGINE_CUDA_OPS(m) STABLE_TORCH_LIBRARY_IMPL(pyengine_emulated, CPU, m)
#endif

namespace pyengine::cuda {

// The memory of a tensor, for a kernel: from its first element to its last one.
template <typename T>
Pointer<T> pointer(const Tensor& t) {
  T* const begin = static_cast<T*>(const_cast<void*>(t.const_data_ptr()));
#ifdef __CUDACC__
  return begin;
#else
  int64_t size = t.numel() == 0 ? 0 : 1;
  for (int64_t i = 0; i < t.dim() && size > 0; ++i) size += (t.size(i) - 1) * t.stride(i);
  return {begin, begin, begin + size * t.element_size() / static_cast<int64_t>(sizeof(T))};
#endif
}

// A tensor on the device of `like`, not set. (The emulation sets it to NaN or -1, so that what a
// kernel leaves out shows.)
inline Tensor new_tensor(const Tensor& like, std::initializer_list<int64_t> shape,
                         ScalarType dtype) {
  Tensor t = torch::stable::new_empty(like, shape, dtype);
#ifndef __CUDACC__
  std::memset(t.mutable_data_ptr(), 0xff, static_cast<size_t>(t.numel() * t.element_size()));
#endif
  return t;
}

// Runs a kernel on the device of `on`, on PyTorch's current stream there. An empty grid is no launch.
// `args` are copied: plain structs, numbers and pointers.
template <typename... Params, typename... Args>
void launch(const Tensor& on, void (*kernel)(Params...), dim3 grid, unsigned num_threads,
            int64_t shared_bytes, const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#ifdef __CUDACC__
  const auto check = [](cudaError_t error) {
    STD_TORCH_CHECK(error == cudaSuccess, "CUDA: ", cudaGetErrorString(error));
  };
  const int32_t device = on.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  constexpr int64_t kStaticSharedBytes = 48 << 10;  // more has to be asked for
  if (shared_bytes > kStaticSharedBytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)));
  }
  kernel<<<grid, num_threads, static_cast<size_t>(shared_bytes),
           static_cast<cudaStream_t>(stream)>>>(Params(args)...);
  check(cudaGetLastError());
#else
  simt::Block::current().launch(grid, {num_threads, 1, 1}, static_cast<size_t>(shared_bytes),
                                [&] { kernel(Params(args)...); });
#endif
}

inline unsigned grid_size(int64_t n) {
  STD_TORCH_CHECK(n <= 0x7fffffff, "a kernel's grid of ", n, " blocks is too large");
  return static_cast<unsigned>(n);
}

// Whether the elements of a tensor's rows (its last dimension, or its last but those of size 1) lie
// at multiples of 16 bytes where they are at multiples of `period` in the row.
inline bool is_aligned(const Tensor& t, int64_t period) {
  bool is_multiple = reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0 &&
                     period * t.element_size() % 16 == 0;
  for (int64_t i = 0; i < t.dim(); ++i) {
    const bool is_row = t.stride(i) == 1;
    is_multiple =
        is_multiple && (is_row || t.size(i) == 1 || t.stride(i) * t.element_size() % 16 == 0);
  }
  return is_multiple;
}

// V of logits [R, V]. Kernels number the tokens of a vocabulary with int32.
inline int32_t vocab_size_of(const Tensor& logits) {
  constexpr int64_t kMaxVocabSize = int64_t{1} << 30;
  STD_TORCH_CHECK(logits.size(1) <= kMaxVocabSize, "logits must have a vocabulary of ",
                  kMaxVocabSize, " at most on a GPU, got ", logits.size(1));
  return static_cast<int32_t>(logits.size(1));
}

// Calls body with a value of the activation type that `dtype` names (already checked).
template <typename Body>
void dispatch_activation(ScalarType dtype, const Body& body) {
  switch (dtype) {
    case ScalarType::Float:
      return body(float{});
    case ScalarType::BFloat16:
      return body(bfloat16{});
    default:
      return body(float16{});
  }
}

// Of the two kinds of cache that the checks of operators let through.
inline void check_float_cache(const Tensor& key_cache) {
  STD_TORCH_CHECK(key_cache.scalar_type() != ScalarType::Char,
                  "key_cache must not be int8 on a GPU: so far, int8 caches are for CPUs");
}

// What tensor cores multiply.
inline void check_tensor_core_dtype(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Half || t.scalar_type() == ScalarType::BFloat16,
                  name, " must be Half or BFloat16 on a GPU, got ",
                  torch::headeronly::toString(t.scalar_type()));
}

template <typename Body>
void dispatch_tensor_core(ScalarType dtype, const Body& body) {
  if (dtype == ScalarType::BFloat16) {
    body(bfloat16{});
  } else {
    body(float16{});
  }
}

}  // namespace pyengine::cuda
