// One check per operator, called by every backend before its kernel, so that all of them refuse
// the same inputs in the same words: the argument's name, what was expected, what came.
#pragma once

#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include "dispatch.h"
#include "ggml_types.h"

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

// float32 [R, V] with V > 0.
inline void check_logits(const Tensor& t) {
  check_dim(t, "logits", 2);
  check_dtype(t, "logits", ScalarType::Float);
  check_contiguous(t, "logits");
  STD_TORCH_CHECK(t.size(1) > 0, "logits must have a vocabulary, got shape ", shape_of(t));
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

// [T, heads, D], any stride from token to token: a view of one product of all projections.
inline void check_heads(const Tensor& t, const char* name) {
  check_dim(t, name, 3);
  STD_TORCH_CHECK(t.numel() == 0 || (t.stride(2) == 1 && t.stride(1) == t.size(2)), name,
                  " must be contiguous in its last two dimensions, got strides [", t.stride(0),
                  ", ", t.stride(1), ", ", t.stride(2), "]");
}

// The bytes of a float32, after the elements of a row of an int8 cache.
constexpr int64_t kScaleBytes = 4;

// Keys and values have the dtype of `other`, or are int8 with scales. Returns the elements of a row.
inline int64_t check_cache_dtypes(const Tensor& key_cache, const Tensor& value_cache,
                                  const Tensor& other, const char* other_name, int64_t head_size) {
  if (key_cache.scalar_type() != ScalarType::Char) {
    check_same_dtype(key_cache, "key_cache", other, other_name);
    check_same_dtype(value_cache, "value_cache", other, other_name);
    return head_size;
  }
  check_dtype(value_cache, "value_cache", ScalarType::Char);
  STD_TORCH_CHECK(head_size <= kMaxHeadSize, "key_cache must have a head size of at most ",
                  kMaxHeadSize, " if it is int8, got ", head_size);
  return head_size + kScaleBytes;
}

// key_cache and value_cache [B, K, P, D] of the queries' dtype and head size, or int8
// [B, K, P, D + 4] with a float32 after each row.
// The last num_contiguous dimensions of a cache are contiguous, and blocks, which may lie apart, do
// so in both caches.
inline void check_cache_strides(const Tensor& key_cache, const Tensor& value_cache,
                                int64_t num_contiguous) {
  int64_t size = 1;
  for (int64_t i = key_cache.dim() - 1; i >= key_cache.dim() - num_contiguous; --i) {
    STD_TORCH_CHECK(key_cache.stride(i) == size || key_cache.size(i) == 1,
                    "key_cache must be contiguous in the dimensions of a block");
    size *= key_cache.size(i);
  }
  for (int64_t i = 0; i < key_cache.dim(); ++i) {
    STD_TORCH_CHECK(value_cache.stride(i) == key_cache.stride(i) || key_cache.size(i) == 1,
                    "value_cache must have the strides of key_cache, got ", value_cache.stride(i),
                    " for ", key_cache.stride(i), " in dimension ", i);
  }
}

inline void check_caches(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache) {
  check_dim(key_cache, "key_cache", 4);
  const int64_t row_size =
      check_cache_dtypes(key_cache, value_cache, query, "query", query.size(2));
  STD_TORCH_CHECK(key_cache.size(3) == row_size, "key_cache must have query's head size ",
                  query.size(2),
                  row_size == query.size(2) ? " last" : " and a scale's 4 bytes last",
                  ", got shape ", shape_of(key_cache));
  STD_TORCH_CHECK(key_cache.size(2) > 0,
                  "key_cache must have a block size of at least 1, got shape ",
                  shape_of(key_cache));
  check_shape(value_cache, "value_cache",
              {key_cache.size(0), key_cache.size(1), key_cache.size(2), key_cache.size(3)});
  check_cache_strides(key_cache, value_cache, 3);
}

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

inline void check_cos_sin(const Tensor& cos_sin, int64_t head_size) {
  check_dim(cos_sin, "cos_sin", 2);
  check_dtype(cos_sin, "cos_sin", ScalarType::Float);
  check_contiguous(cos_sin, "cos_sin");
  STD_TORCH_CHECK(cos_sin.size(1) % 2 == 0 && cos_sin.size(1) <= head_size,
                  "cos_sin must have an even last dimension of at most the head size ", head_size,
                  ", got shape ", shape_of(cos_sin));
}

inline void check_rope_and_cache(const Tensor& query, const Tensor& key, const Tensor& value,
                                 const Tensor& positions, const Tensor& cos_sin,
                                 const Tensor& key_cache, const Tensor& value_cache,
                                 const Tensor& slot_mapping) {
  check_heads(query, "query");
  check_activation_dtype(query, "query");
  check_caches(query, key_cache, value_cache);
  const int64_t num_tokens = query.size(0), head_size = query.size(2);
  check_heads(key, "key");
  check_same_dtype(key, "key", query, "query");
  check_shape(key, "key", {num_tokens, key_cache.size(1), head_size});
  check_heads(value, "value");
  check_same_dtype(value, "value", query, "query");
  check_shape(value, "value", {num_tokens, key_cache.size(1), head_size});
  check_vector(positions, "positions", ScalarType::Long, num_tokens);
  check_vector(slot_mapping, "slot_mapping", ScalarType::Long, num_tokens);
  check_cos_sin(cos_sin, head_size);
}

// What paged_attention knows of its sequences.
inline void check_attention_inputs(const Tensor& block_tables, const Tensor& query_start_loc,
                                   const Tensor& seq_lens) {
  check_dim(seq_lens, "seq_lens", 1);
  const int64_t num_seqs = seq_lens.size(0);
  check_vector(seq_lens, "seq_lens", ScalarType::Int, num_seqs);
  check_vector(query_start_loc, "query_start_loc", ScalarType::Int, num_seqs + 1);
  check_dim(block_tables, "block_tables", 2);
  check_dtype(block_tables, "block_tables", ScalarType::Int);
  check_shape(block_tables, "block_tables", {num_seqs, block_tables.size(1)});
  check_contiguous(block_tables, "block_tables");
}

inline void check_paged_attention(const Tensor& query, const Tensor& key_cache,
                                  const Tensor& value_cache, const Tensor& block_tables,
                                  const Tensor& query_start_loc, const Tensor& seq_lens,
                                  double scale, int64_t sliding_window, double soft_cap) {
  check_heads(query, "query");
  check_activation_dtype(query, "query");
  check_caches(query, key_cache, value_cache);
  STD_TORCH_CHECK(1 <= query.size(2) && query.size(2) <= kMaxHeadSize,
                  "query must have a head size of 1 to ", kMaxHeadSize, ", got shape ",
                  shape_of(query));
  STD_TORCH_CHECK(
      query.size(1) > 0 && key_cache.size(1) > 0 && query.size(1) % key_cache.size(1) == 0,
      "query must have a multiple of key_cache's ", key_cache.size(1), " heads, got shape ",
      shape_of(query));
  check_attention_inputs(block_tables, query_start_loc, seq_lens);
  STD_TORCH_CHECK(std::isfinite(scale), "scale must be finite, got ", scale);
  STD_TORCH_CHECK(sliding_window >= 0, "sliding_window must not be negative, got ", sliding_window);
  STD_TORCH_CHECK(soft_cap >= 0 && std::isfinite(soft_cap),
                  "soft_cap must be finite and not negative, got ", soft_cap);
}

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

inline void check_silu_and_mul(const Tensor& x) {
  check_dim(x, "x", 2);
  check_activation_dtype(x, "x");
  check_contiguous(x, "x");
  STD_TORCH_CHECK(x.size(1) % 2 == 0, "x must have an even last dimension, got shape ",
                  shape_of(x));
}

// Shared with the fake kernel's shapes: how packed weights of [num_outputs, num_inputs] lie.
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

// The type's description, of one whose blocks linear layers compute with.
inline const GgmlType& check_block_type(int64_t ggml_type) {
  const GgmlType* type = find_ggml_type(ggml_type);
  const auto has_blocks = [](const GgmlType& t) { return t.block_size > 1; };
  STD_TORCH_CHECK(type != nullptr && has_blocks(*type), "ggml_type must be one of ",
                  list_ggml_types(has_blocks), ", got ", ggml_type);
  return *type;
}

inline void check_pack_quantized_weight(const Tensor& blocks, int64_t ggml_type) {
  check_dim(blocks, "blocks", 2);
  check_dtype(blocks, "blocks", ScalarType::Byte);
  check_contiguous(blocks, "blocks");
  const GgmlType& type = check_block_type(ggml_type);
  STD_TORCH_CHECK(blocks.size(1) > 0 && blocks.size(1) % type.block_bytes == 0,
                  "blocks must have rows of whole ", type.name, " blocks of ", type.block_bytes,
                  " bytes, got rows of ", blocks.size(1), " bytes");
}

inline void check_whole_blocks(int64_t ggml_type, const char* name, int64_t size) {
  const GgmlType& type = check_block_type(ggml_type);
  STD_TORCH_CHECK(size > 0 && size % type.block_size == 0, name, " must be a multiple of ",
                  type.block_size, ", the size of a ", type.name, " block, got ", size);
}

// x [T, K] of `quantized_linear`, whose K inputs are whole blocks of the type.
inline void check_quantized_input(const Tensor& x, int64_t ggml_type) {
  check_dim(x, "x", 2);
  check_activation_dtype(x, "x");
  STD_TORCH_CHECK(x.stride(1) == 1, "x must have contiguous rows");
  check_whole_blocks(ggml_type, "the number of inputs of x", x.size(1));
}

// The packed numbers take panel_bytes in each panel.
inline void check_packed_quantized_weight(const Tensor& packed_weight, int64_t num_panels,
                                          int64_t panel_bytes) {
  check_dtype(packed_weight, "packed_weight", ScalarType::Byte);
  check_shape(packed_weight, "packed_weight", {num_panels, panel_bytes});
  check_contiguous(packed_weight, "packed_weight");
}

inline void check_quantized_embedding(const Tensor& token_ids, int64_t ggml_type, int64_t row_size,
                                      ScalarType dtype) {
  check_dim(token_ids, "token_ids", 1);
  check_vector(token_ids, "token_ids", ScalarType::Long, token_ids.size(0));
  check_whole_blocks(ggml_type, "row_size", row_size);
  check_float_or_bfloat16(dtype);
}

inline void check_embedding(const Tensor& token_ids, const Tensor& weight) {
  check_dim(token_ids, "token_ids", 1);
  check_vector(token_ids, "token_ids", ScalarType::Long, token_ids.size(0));
  check_dim(weight, "weight", 2);
  check_activation_dtype(weight, "weight");
  check_contiguous(weight, "weight");
}

inline void check_packed_embedding(const Tensor& token_ids, const Tensor& packed_weight,
                                   int64_t num_rows, int64_t row_size, int64_t panel,
                                   int64_t step) {
  check_dim(token_ids, "token_ids", 1);
  check_vector(token_ids, "token_ids", ScalarType::Long, token_ids.size(0));
  check_activation_dtype(packed_weight, "packed_weight");
  check_packed_weight(packed_weight, packed_weight.scalar_type(), row_size, num_rows, panel, step);
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
  STD_TORCH_CHECK(type != nullptr, "ggml_type must be one of ",
                  list_ggml_types([](const GgmlType&) { return true; }), ", got ", ggml_type);
  STD_TORCH_CHECK(data.size(1) % type->block_bytes == 0, "data must have rows of whole ",
                  type->name, " blocks of ", type->block_bytes, " bytes, got rows of ",
                  data.size(1), " bytes");
  check_float_or_bfloat16(dtype);
}

inline void check_quantize(const Tensor& weight, int64_t ggml_type) {
  check_dim(weight, "weight", 2);
  check_activation_dtype(weight, "weight");
  check_contiguous(weight, "weight");
  const GgmlType* type = find_ggml_type(ggml_type);
  STD_TORCH_CHECK(type != nullptr && type->is_quantizable, "ggml_type must be one of ",
                  list_ggml_types([](const GgmlType& t) { return t.is_quantizable; }), ", got ",
                  ggml_type);
  STD_TORCH_CHECK(weight.size(1) % type->block_size == 0, "weight must have rows of whole ",
                  type->name, " blocks of ", type->block_size, " elements, got rows of ",
                  weight.size(1));
}

}  // namespace pyengine
