// One check per operator, called by every backend before its kernel, so that all of them refuse
// the same inputs in the same words: the argument's name, what was expected, what came.
#pragma once

#include <string>

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

namespace pyengine {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline std::string shape_of(const Tensor& t) {
  std::string s = "[";
  for (int64_t i = 0; i < t.dim(); ++i) {
    s += (i ? ", " : "") + std::to_string(t.size(i));
  }
  return s + "]";
}

inline void check_dim(const Tensor& t, const char* name, int64_t dim) {
  STD_TORCH_CHECK(t.dim() == dim, name, " must have ", dim, " dimensions, got shape ", shape_of(t));
}

inline void check_dtype(const Tensor& t, const char* name, ScalarType dtype) {
  STD_TORCH_CHECK(t.scalar_type() == dtype, name, " must be ", torch::headeronly::toString(dtype),
                  ", got ", torch::headeronly::toString(t.scalar_type()));
}

// The element types of activations and of the KV cache.
inline void check_activation_dtype(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(
      t.scalar_type() == ScalarType::Float || t.scalar_type() == ScalarType::BFloat16, name,
      " must be Float or BFloat16, got ", torch::headeronly::toString(t.scalar_type()));
}

inline void check_contiguous(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.is_contiguous(), name, " must be contiguous");
}

inline void check_silu_and_mul(const Tensor& x) {
  check_dim(x, "x", 2);
  check_activation_dtype(x, "x");
  check_contiguous(x, "x");
  STD_TORCH_CHECK(x.size(1) % 2 == 0, "x must have an even last dimension, got shape ",
                  shape_of(x));
}

}  // namespace pyengine
