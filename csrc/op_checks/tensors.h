// What the checks of several operators have in common.
#pragma once

#include <initializer_list>
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

// Whether the backend that the tensor belongs to has kernels for half-precision numbers.
inline bool is_half_supported(const Tensor& t) {
#ifdef PYENGINE_EMULATION
  return true;
#else
  return !t.is_cpu();
#endif
}

// The element types of activations and of the KV cache.
inline void check_activation_dtype(const Tensor& t, const char* name) {
  const ScalarType dtype = t.scalar_type();
  const bool is_half = dtype == ScalarType::Half && is_half_supported(t);
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::BFloat16 || is_half, name,
                  " must be Float", is_half_supported(t) ? ", Half" : "", " or BFloat16, got ",
                  torch::headeronly::toString(dtype));
}

inline void check_float_or_bfloat16(ScalarType dtype) {
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::BFloat16,
                  "dtype must be Float or BFloat16, got ", torch::headeronly::toString(dtype));
}

inline void check_contiguous(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.is_contiguous(), name, " must be contiguous");
}

// A contiguous vector of `size` elements.
inline void check_vector(const Tensor& t, const char* name, ScalarType dtype, int64_t size) {
  check_dim(t, name, 1);
  check_dtype(t, name, dtype);
  check_contiguous(t, name);
  STD_TORCH_CHECK(t.size(0) == size, name, " must have ", size, " elements, got ", t.size(0));
}

inline void check_same_dtype(const Tensor& t, const char* name, const Tensor& other,
                             const char* other_name) {
  STD_TORCH_CHECK(t.scalar_type() == other.scalar_type(), name, " must have the dtype of ",
                  other_name, ", ", torch::headeronly::toString(other.scalar_type()), ", got ",
                  torch::headeronly::toString(t.scalar_type()));
}

inline void check_shape(const Tensor& t, const char* name, std::initializer_list<int64_t> shape) {
  bool same = t.dim() == static_cast<int64_t>(shape.size());
  std::string expected;
  int64_t i = 0;
  for (const int64_t size : shape) {
    same = same && t.size(i) == size;
    expected += (i++ ? ", " : "") + std::to_string(size);
  }
  STD_TORCH_CHECK(same, name, " must have shape [", expected, "], got ", shape_of(t));
}

}  // namespace pyengine
