// Checks of a decoder's layers in one call.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "attention.h"

namespace pyengine {

inline void check_decoder_create(const Tensor& cos_sin, const std::vector<Tensor>& norms,
                                 int64_t num_heads, int64_t num_kv_heads, int64_t head_size,
                                 int64_t intermediate_size, double scale, int64_t sliding_window,
                                 double eps) {
  STD_TORCH_CHECK(norms.size() >= 3 && norms.size() % 2 == 1,
                  "norms must be two for each layer, at least one, and the last, got ",
                  norms.size());
  check_dim(norms[0], "norms", 1);
  check_activation_dtype(norms[0], "norms");
  for (const Tensor& norm : norms) {
    check_vector(norm, "norms", norms[0].scalar_type(), norms[0].size(0));
  }
  STD_TORCH_CHECK(num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0,
                  "num_heads must be a multiple of num_kv_heads (", num_kv_heads, "), got ",
                  num_heads);
  STD_TORCH_CHECK(1 <= head_size && head_size <= kMaxHeadSize, "head_size must be in [1, ",
                  kMaxHeadSize, "], got ", head_size);
  STD_TORCH_CHECK(intermediate_size > 0, "intermediate_size must be positive, got ",
                  intermediate_size);
  STD_TORCH_CHECK(std::isfinite(scale), "scale must be finite, got ", scale);
  STD_TORCH_CHECK(sliding_window >= 0, "sliding_window must not be negative, got ", sliding_window);
  STD_TORCH_CHECK(eps >= 0, "eps must not be negative, got ", eps);
  check_cos_sin(cos_sin, head_size);
}

// For a residual of decoder_run with `num_layers` layers of num_kv_heads heads.
inline void check_decoder_run(const Tensor& norm, int64_t num_layers, int64_t num_kv_heads,
                              int64_t head_size, const Tensor& residual, const Tensor& positions,
                              const Tensor& slot_mapping, const Tensor& block_tables,
                              const Tensor& query_start_loc, const Tensor& seq_lens,
                              const Tensor& key_cache, const Tensor& value_cache) {
  check_dim(residual, "residual", 2);
  check_same_dtype(residual, "residual", norm, "norms");
  check_contiguous(residual, "residual");
  check_shape(residual, "residual", {residual.size(0), norm.size(0)});
  check_vector(positions, "positions", ScalarType::Long, residual.size(0));
  check_vector(slot_mapping, "slot_mapping", ScalarType::Long, residual.size(0));
  check_attention_inputs(block_tables, query_start_loc, seq_lens);
  check_dim(key_cache, "key_cache", 5);
  const int64_t row_size = check_cache_dtypes(key_cache, value_cache, norm, "norms", head_size);
  for (const auto& [cache, name] :
       {std::pair(&key_cache, "key_cache"), std::pair(&value_cache, "value_cache")}) {
    check_shape(*cache, name,
                {key_cache.size(0), num_layers, num_kv_heads, key_cache.size(3), row_size});
  }
  check_cache_strides(key_cache, value_cache, 3);
}

}  // namespace pyengine
