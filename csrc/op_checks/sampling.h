// Checks of what leads from logits to a token.
#pragma once

#include "tensors.h"

namespace pyengine {

// float32 [R, V] with V > 0.
inline void check_logits(const Tensor& t) {
  check_dim(t, "logits", 2);
  check_dtype(t, "logits", ScalarType::Float);
  check_contiguous(t, "logits");
  STD_TORCH_CHECK(t.size(1) > 0, "logits must have a vocabulary, got shape ", shape_of(t));
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

}  // namespace pyengine
