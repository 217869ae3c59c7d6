#include "../op_checks.h"
#include "../ops.h"
#include "parallel.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/library.h>

#include <cstring>
#include <vector>

namespace pyengine {
namespace {

// The rows of `hidden` to gather, in order; refuses offsets that lead out of it.
std::vector<int64_t> rows_to_gather(const Tensor& hidden, const Tensor& query_start_loc,
                                    const Tensor& num_logits, int64_t num_rows) {
  const int32_t* starts = data<int32_t>(query_start_loc);
  const int32_t* counts = data<int32_t>(num_logits);
  const int64_t num_seqs = num_logits.size(0);
  check_offsets("query_start_loc", starts, num_seqs, hidden.size(0));
  std::vector<int64_t> rows;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t end = starts[s + 1], query_len = end - starts[s];
    STD_TORCH_CHECK(counts[s] >= 0 && counts[s] <= query_len, "num_logits[", s, "] must be in [0, ",
                    query_len, "], the sequence's query length, got ", counts[s]);
    for (int64_t row = end - counts[s]; row < end; ++row) rows.push_back(row);
  }
  STD_TORCH_CHECK(static_cast<int64_t>(rows.size()) == num_rows,
                  "num_rows must be the sum of num_logits, ", rows.size(), ", got ", num_rows);
  return rows;
}

}  // namespace

Tensor gather_logits(const Tensor& hidden, const Tensor& query_start_loc, const Tensor& num_logits,
                     int64_t num_rows) {
  check_gather_logits(hidden, query_start_loc, num_logits, num_rows);
  const std::vector<int64_t> rows = rows_to_gather(hidden, query_start_loc, num_logits, num_rows);
  const int64_t size = hidden.size(1);
  const int64_t row_bytes = size * hidden.element_size();
  Tensor out = torch::stable::new_empty(hidden, {num_rows, size});
  if (size == 0) return out;  // without storage there is no address to copy from
  const char* source = static_cast<const char*>(hidden.const_data_ptr());
  char* target = static_cast<char*>(out.mutable_data_ptr());
  parallel_items(num_rows, size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(target + i * row_bytes, source + rows[static_cast<size_t>(i)] * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  });
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("gather_logits", TORCH_BOX(&pyengine::gather_logits));
}
