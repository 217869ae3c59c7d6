// Checks of linear layers and embeddings over packed float weights.
#pragma once

#include <optional>

#include "tensors.h"

namespace pyengine {

inline void check_pack_linear_weight(const Tensor& weight) {
  check_dim(weight, "weight", 2);
  check_activation_dtype(weight, "weight");
  check_contiguous(weight, "weight");
}

// `panel` outputs by `step` inputs lie together in packed_weight, for inputs of type `dtype`.
inline void check_packed_weight(const Tensor& packed_weight, ScalarType dtype, int64_t num_inputs,
                                int64_t num_outputs, int64_t panel, int64_t step) {
  check_dim(packed_weight, "packed_weight", 4);
  check_dtype(packed_weight, "packed_weight", dtype);
  check_contiguous(packed_weight, "packed_weight");
  STD_TORCH_CHECK(packed_weight.size(2) == panel && packed_weight.size(3) == step,
                  "packed_weight must come from pack_linear_weight, in panels of ", panel, " by ",
                  step, ", got shape ", shape_of(packed_weight));
  STD_TORCH_CHECK(packed_weight.size(1) == (num_inputs + step - 1) / step,
                  "packed_weight must be for ", num_inputs, " inputs, got shape ",
                  shape_of(packed_weight));
  STD_TORCH_CHECK(packed_weight.size(0) == (num_outputs + panel - 1) / panel,
                  "packed_weight must be for ", num_outputs, " outputs, got shape ",
                  shape_of(packed_weight));
}

inline void check_bias(const std::optional<Tensor>& bias, ScalarType dtype, int64_t num_outputs) {
  if (bias) check_vector(*bias, "bias", dtype, num_outputs);
}

inline void check_linear(const Tensor& x, const Tensor& packed_weight,
                         const std::optional<Tensor>& bias, int64_t num_outputs, int64_t panel,
                         int64_t step) {
  check_dim(x, "x", 2);
  check_activation_dtype(x, "x");
  STD_TORCH_CHECK(x.stride(1) == 1, "x must have contiguous rows");
  check_packed_weight(packed_weight, x.scalar_type(), x.size(1), num_outputs, panel, step);
  check_bias(bias, x.scalar_type(), num_outputs);
}

inline void check_packed_embedding(const Tensor& token_ids, const Tensor& packed_weight,
                                   int64_t num_rows, int64_t row_size, int64_t panel,
                                   int64_t step) {
  check_dim(token_ids, "token_ids", 1);
  check_vector(token_ids, "token_ids", ScalarType::Long, token_ids.size(0));
  check_activation_dtype(packed_weight, "packed_weight");
  check_packed_weight(packed_weight, packed_weight.scalar_type(), row_size, num_rows, panel, step);
}

}  // namespace pyengine
