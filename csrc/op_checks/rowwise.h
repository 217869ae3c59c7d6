// Checks of the operators that work on each row alone.
#pragma once

#include "tensors.h"

namespace pyengine {

inline void check_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_dim(x, "x", 2);
  check_activation_dtype(x, "x");
  check_contiguous(x, "x");
  check_same_dtype(weight, "weight", x, "x");
  check_shape(weight, "weight", {x.size(1)});
  check_contiguous(weight, "weight");
  STD_TORCH_CHECK(eps >= 0, "eps must not be negative, got ", eps);
}

inline void check_fused_add_rms_norm_(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                      double eps) {
  check_rms_norm(x, weight, eps);
  check_same_dtype(residual, "residual", x, "x");
  check_shape(residual, "residual", {x.size(0), x.size(1)});
  check_contiguous(residual, "residual");
}

inline void check_silu_and_mul(const Tensor& x) {
  check_dim(x, "x", 2);
  check_activation_dtype(x, "x");
  check_contiguous(x, "x");
  STD_TORCH_CHECK(x.size(1) % 2 == 0, "x must have an even last dimension, got shape ",
                  shape_of(x));
}

inline void check_embedding(const Tensor& token_ids, const Tensor& weight) {
  check_dim(token_ids, "token_ids", 1);
  check_vector(token_ids, "token_ids", ScalarType::Long, token_ids.size(0));
  check_dim(weight, "weight", 2);
  check_activation_dtype(weight, "weight");
  check_contiguous(weight, "weight");
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

}  // namespace pyengine
