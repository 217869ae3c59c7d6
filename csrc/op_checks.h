// One check per operator, called by every backend before its kernel, so that all of them refuse
// the same inputs in the same words: the argument's name, what was expected, what came.
#pragma once

#include <string>

#include "ggml_types.h"

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
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float || t.scalar_type() == ScalarType::BFloat16,
                  name, " must be Float or BFloat16, got ",
                  torch::headeronly::toString(t.scalar_type()));
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

// float32 [R, V] with V > 0.
inline void check_logits(const Tensor& t) {
  check_dim(t, "logits", 2);
  check_dtype(t, "logits", ScalarType::Float);
  check_contiguous(t, "logits");
  STD_TORCH_CHECK(t.size(1) > 0, "logits must have a vocabulary, got shape ", shape_of(t));
}

inline void check_silu_and_mul(const Tensor& x) {
  check_dim(x, "x", 2);
  check_activation_dtype(x, "x");
  check_contiguous(x, "x");
  STD_TORCH_CHECK(x.size(1) % 2 == 0, "x must have an even last dimension, got shape ",
                  shape_of(x));
}

inline void check_gather_logits(const Tensor& hidden, const Tensor& query_start_loc,
                                const Tensor& num_logits, int64_t num_rows) {
  check_dim(hidden, "hidden", 2);
  check_activation_dtype(hidden, "hidden");
  check_contiguous(hidden, "hidden");
  check_dim(num_logits, "num_logits", 1);
  check_vector(num_logits, "num_logits", ScalarType::Int, num_logits.size(0));
  check_vector(query_start_loc, "query_start_loc", ScalarType::Int, num_logits.size(0) + 1);
  STD_TORCH_CHECK(num_rows >= 0, "num_rows must be at least 0, got ", num_rows);
}

inline void check_apply_penalties(const Tensor& logits, const Tensor& token_ids,
                                  const Tensor& token_start_loc, const Tensor& num_prompt_tokens,
                                  const Tensor& repetition, const Tensor& presence,
                                  const Tensor& frequency) {
  check_logits(logits);
  const int64_t rows = logits.size(0);
  check_dim(token_ids, "token_ids", 1);
  check_vector(token_ids, "token_ids", ScalarType::Long, token_ids.size(0));
  check_vector(token_start_loc, "token_start_loc", ScalarType::Int, rows + 1);
  check_vector(num_prompt_tokens, "num_prompt_tokens", ScalarType::Int, rows);
  check_vector(repetition, "repetition", ScalarType::Float, rows);
  check_vector(presence, "presence", ScalarType::Float, rows);
  check_vector(frequency, "frequency", ScalarType::Float, rows);
}

inline void check_sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
                         const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
                         const Tensor& output_indices) {
  check_logits(logits);
  const int64_t rows = logits.size(0);
  check_vector(temperature, "temperature", ScalarType::Float, rows);
  check_vector(top_k, "top_k", ScalarType::Int, rows);
  check_vector(top_p, "top_p", ScalarType::Float, rows);
  check_vector(min_p, "min_p", ScalarType::Float, rows);
  check_vector(seeds, "seeds", ScalarType::Long, rows);
  check_vector(output_indices, "output_indices", ScalarType::Long, rows);
}

inline void check_token_logprobs(const Tensor& logits, const Tensor& token_ids, int64_t num_top) {
  check_logits(logits);
  check_vector(token_ids, "token_ids", ScalarType::Long, logits.size(0));
  STD_TORCH_CHECK(num_top >= 0 && num_top <= logits.size(1), "num_top must be in [0, ",
                  logits.size(1), "], the vocabulary's size, got ", num_top);
}

inline void check_dequantize(const Tensor& data, int64_t ggml_type, ScalarType dtype) {
  check_dim(data, "data", 2);
  check_dtype(data, "data", ScalarType::Byte);
  check_contiguous(data, "data");
  const GgmlType* type = find_ggml_type(ggml_type);
  STD_TORCH_CHECK(type != nullptr, "ggml_type must be one of ", supported_ggml_types(), ", got ",
                  ggml_type);
  STD_TORCH_CHECK(data.size(1) % type->block_bytes == 0, "data must have rows of whole ",
                  type->name, " blocks of ", type->block_bytes, " bytes, got rows of ",
                  data.size(1), " bytes");
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::BFloat16,
                  "dtype must be Float or BFloat16, got ", torch::headeronly::toString(dtype));
}

}  // namespace pyengine
