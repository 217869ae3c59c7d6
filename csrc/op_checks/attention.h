// Checks of rotary positions, the KV cache, and attention over it.
#pragma once

#include <cmath>

#include "../dispatch.h"
#include "tensors.h"

namespace pyengine {

// [T, heads, D], any stride from token to token: a view of one product of all projections.
inline void check_heads(const Tensor& t, const char* name) {
  check_dim(t, name, 3);
  STD_TORCH_CHECK(t.numel() == 0 || (t.stride(2) == 1 && t.stride(1) == t.size(2)), name,
                  " must be contiguous in its last two dimensions, got strides [", t.stride(0),
                  ", ", t.stride(1), ", ", t.stride(2), "]");
}

// The bytes of a float32, after the elements of a row of an int8 cache.
constexpr int64_t kScaleBytes = 4;

// Keys and values have the dtype of `other`, or are int8 with scales. Returns a row's elements.
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

// key_cache and value_cache [B, K, P, D] of the queries' dtype and head size, or int8
// [B, K, P, D + 4] with a float32 after each row.
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

}  // namespace pyengine
