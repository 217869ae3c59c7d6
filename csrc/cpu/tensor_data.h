// From tensors to the pointers that kernels take.
#pragma once

#include "../dispatch.h"

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

namespace pyengine {

template <typename T>
const T* data(const torch::stable::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

template <typename T>
T* mutable_data(const torch::stable::Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

template <typename T>
constexpr torch::headeronly::ScalarType kScalarType =
    sizeof(T) == 2 ? torch::headeronly::ScalarType::BFloat16 : torch::headeronly::ScalarType::Float;

// Calls body with a value of the activation type that `dtype` names (already checked).
template <typename Body>
void dispatch_activation(torch::headeronly::ScalarType dtype, const Body& body) {
  if (dtype == torch::headeronly::ScalarType::Float) {
    body(float{});
  } else {
    body(bfloat16{});
  }
}

// Calls body with a value of the activation type and one of the KV cache's element type.
template <typename Body>
void dispatch_cache(torch::headeronly::ScalarType dtype, torch::headeronly::ScalarType cache_dtype,
                    const Body& body) {
  dispatch_activation(dtype, [&](auto type) {
    if (cache_dtype == torch::headeronly::ScalarType::Char) {
      body(type, int8_t{});
    } else {
      body(type, type);
    }
  });
}

}  // namespace pyengine
