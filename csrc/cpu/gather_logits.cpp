#include "../op_checks.h"
#include "../ops.h"
#include "gather_rows.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/library.h>

#include <vector>

namespace pyengine {

Tensor gather_logits(const Tensor& hidden, const Tensor& query_start_loc, const Tensor& num_logits,
                     int64_t num_rows) {
  check_gather_logits(hidden, query_start_loc, num_logits, num_rows);
  const int32_t* starts = data<int32_t>(query_start_loc);
  const int64_t num_seqs = num_logits.size(0), size = hidden.size(1);
  check_offsets("query_start_loc", starts, num_seqs, hidden.size(0));
  const std::vector<int64_t> rows =
      rows_with_logits(starts, data<int32_t>(num_logits), num_seqs, num_rows);
  Tensor out = torch::stable::new_empty(hidden, {num_rows, size});
  if (size == 0) return out;  // without storage there is no address to copy from
  dispatch_activation(hidden.scalar_type(), [&](auto type) {
    using T = decltype(type);
    gather_rows(data<T>(hidden), size, size, rows, mutable_data<T>(out));
  });
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("gather_logits", TORCH_BOX(&pyengine::gather_logits));
}
