// The rows of a flat batch that need logits, on plain memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <torch/headeronly/util/Exception.h>

#include "parallel.h"

namespace pyengine {

// Which rows these are, in order: the last num_logits[s] of the rows of each of num_seqs sequences,
// which begin at query_start_loc[s]. Refuses counts that lead out of a sequence's rows, or that
// don't add up to num_rows.
inline std::vector<int64_t> rows_with_logits(const int32_t* query_start_loc,
                                             const int32_t* num_logits, int64_t num_seqs,
                                             int64_t num_rows) {
  std::vector<int64_t> rows;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t end = query_start_loc[s + 1], query_len = end - query_start_loc[s];
    STD_TORCH_CHECK(num_logits[s] >= 0 && num_logits[s] <= query_len, "num_logits[", s,
                    "] must be in [0, ", query_len, "], the sequence's query length, got ",
                    num_logits[s]);
    for (int64_t row = end - num_logits[s]; row < end; ++row) rows.push_back(row);
  }
  STD_TORCH_CHECK(static_cast<int64_t>(rows.size()) == num_rows,
                  "num_rows must be the sum of num_logits, ", rows.size(), ", got ", num_rows);
  return rows;
}

// Copies `size` elements from each of the rows, which lie stride apart, to rows side by side.
template <typename U>
void gather_rows(const U* from, int64_t stride, int64_t size, const std::vector<int64_t>& rows,
                 U* to) {
  parallel_items(static_cast<int64_t>(rows.size()), size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(to + i * size, from + rows[static_cast<size_t>(i)] * stride,
                  static_cast<size_t>(size) * sizeof(U));
    }
  });
}

}  // namespace pyengine
