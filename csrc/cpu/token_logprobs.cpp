#include "../op_checks.h"
#include "../ops.h"
#include "logits_row.h"
#include "parallel.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace pyengine {
namespace {

// The n first tokens of the row, in order.
std::vector<int64_t> top_tokens(LogitsRow& row, const float* logits, int64_t n) {
  if (n == 0) return {};
  std::vector<int64_t> ids = row.ids(row.top_k(n));
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
    return number_or_minus_infinity(logits[a]) > number_or_minus_infinity(logits[b]);
  });
  return ids;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> token_logprobs(const Tensor& logits,
                                                          const Tensor& token_ids,
                                                          int64_t num_top) {
  check_token_logprobs(logits, token_ids, num_top);
  const int64_t rows = logits.size(0), vocab_size = logits.size(1);
  const float* values = data<float>(logits);
  const int64_t* ids = data<int64_t>(token_ids);
  check_range("token_ids", ids, rows, 0, vocab_size);

  Tensor logprob = torch::stable::new_empty(logits, {rows});
  Tensor rank = torch::stable::new_empty(logits, {rows}, ScalarType::Int);
  Tensor top_ids = torch::stable::new_empty(logits, {rows, num_top}, ScalarType::Long);
  Tensor top_logprobs = torch::stable::new_empty(logits, {rows, num_top});
  float *logprobs = mutable_data<float>(logprob), *tops = mutable_data<float>(top_logprobs);
  int32_t* ranks = mutable_data<int32_t>(rank);
  int64_t* tops_ids = mutable_data<int64_t>(top_ids);

  parallel_items(rows, vocab_size, [&](int64_t begin, int64_t end) {
    LogitsRow row(vocab_size);
    for (int64_t r = begin; r < end; ++r) {
      const float* x = values + r * vocab_size;
      row.reset(x);
      const double log_sum = row.max() + std::log(row.weigh(row.all(), 1.0f));
      const auto log_softmax = [&](int64_t id) {
        return static_cast<float>(number_or_minus_infinity(x[id]) - log_sum);
      };
      logprobs[r] = log_softmax(ids[r]);
      ranks[r] = static_cast<int32_t>(1 + row.count_greater(number_or_minus_infinity(x[ids[r]])));
      int64_t column = r * num_top;
      for (const int64_t id : top_tokens(row, x, num_top)) {
        tops_ids[column] = id;
        tops[column++] = log_softmax(id);
      }
    }
  });
  return {logprob, rank, top_ids, top_logprobs};
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("token_logprobs", TORCH_BOX(&pyengine::token_logprobs));
}
