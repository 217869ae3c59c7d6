// Checks of what index tensors hold, where reading them costs no synchronization.
#pragma once

#include <cstdint>

#include <torch/headeronly/util/Exception.h>

#include "attention_plan.h"

namespace pyengine {

// offsets [num_items + 1]: from 0, not decreasing, up to `end` at most.
inline void check_offsets(const char* name, const int32_t* offsets, int64_t num_items,
                          int64_t end) {
  STD_TORCH_CHECK(offsets[0] == 0, name, "[0] must be 0, got ", offsets[0]);
  for (int64_t i = 0; i < num_items; ++i) {
    STD_TORCH_CHECK(offsets[i] <= offsets[i + 1], name, " must not decrease, got ", offsets[i],
                    " before ", offsets[i + 1], " at index ", i + 1);
  }
  STD_TORCH_CHECK(offsets[num_items] <= end, name, " must end at ", end, " at most, got ",
                  offsets[num_items]);
}

// The sequences' queries make up all `num_tokens` tokens.
inline void check_query_start_loc(const AttentionShape& shape, int64_t num_tokens) {
  check_offsets("query_start_loc", shape.query_start_loc, shape.num_seqs, num_tokens);
  STD_TORCH_CHECK(shape.query_start_loc[shape.num_seqs] == num_tokens,
                  "query_start_loc must end at the ", num_tokens, " tokens of query, got ",
                  shape.query_start_loc[shape.num_seqs]);
}

// Every one of the `size` values is in [low, high).
inline void check_range(const char* name, const int64_t* values, int64_t size, int64_t low,
                        int64_t high) {
  for (int64_t i = 0; i < size; ++i) {
    STD_TORCH_CHECK(low <= values[i] && values[i] < high, name, "[", i, "] must be in [", low, ", ",
                    high, "), got ", values[i]);
  }
}

// Every context holds its query and fits its block table (rows of max_blocks), and every block that
// a query sees is one of the cache's num_blocks.
inline void check_contexts(const AttentionShape& shape, const int32_t* block_tables,
                           int64_t max_blocks, int64_t num_blocks, int64_t block_size) {
  for (int64_t s = 0; s < shape.num_seqs; ++s) {
    const int64_t query_len = shape.query_start_loc[s + 1] - shape.query_start_loc[s];
    const int64_t seq_len = shape.seq_lens[s];
    STD_TORCH_CHECK(seq_len >= query_len, "seq_lens[", s, "] must be at least the ", query_len,
                    " tokens of the sequence's query, got ", seq_len);
    STD_TORCH_CHECK(seq_len <= max_blocks * block_size, "seq_lens[", s, "] must be at most the ",
                    max_blocks * block_size, " tokens that a row of block_tables holds, got ",
                    seq_len);
    if (query_len == 0) continue;
    const int64_t first_key = shape.first_key(seq_len - query_len);
    for (int64_t b = first_key / block_size; b * block_size < seq_len; ++b) {
      const int32_t block = block_tables[s * max_blocks + b];
      STD_TORCH_CHECK(0 <= block && block < num_blocks, "block_tables[", s, ", ", b,
                      "] must be in [0, ", num_blocks, "), got ", block);
    }
  }
}

}  // namespace pyengine
