#include "../op_checks.h"
#include "../ops.h"
#include "../philox.h"
#include "logits_row.h"
#include "parallel.h"
#include "tensor_data.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>

namespace pyengine {
namespace {

struct RowParams {
  float temperature;
  int64_t top_k;
  float top_p, min_p;
  double noise;  // in [0, 1)
};

Prefix shorter(const Prefix& a, const Prefix& b) {
  if (a.threshold != b.threshold) return a.threshold > b.threshold ? a : b;
  return a.last_tie < b.last_tie ? a : b;
}

// p >= min_p * p_max, solved for the logit; the likeliest token always passes.
float min_p_threshold(const LogitsRow& row, const RowParams& params) {
  const double log_min_p = std::log(static_cast<double>(std::min(params.min_p, 1.0f)));
  return static_cast<float>(row.max() + static_cast<double>(params.temperature) * log_min_p);
}

int64_t sample_token(LogitsRow& row, int64_t vocab_size, const RowParams& params) {
  // A row whose greatest logit is infinite has no softmax: +inf is certain, and a row without a
  // number is no distribution at all. Both go the greedy way.
  if (!(params.temperature > 0) || !std::isfinite(row.max())) return row.argmax();

  Prefix kept = row.all();
  if (params.min_p > 0) kept = row.at_least(min_p_threshold(row, params));
  if (params.top_k > 0 && params.top_k < vocab_size) kept = shorter(kept, row.top_k(params.top_k));
  double sum = row.weigh(kept, params.temperature);
  if (params.top_p < 1) {
    const double mass = static_cast<double>(params.top_p) * sum;
    kept = row.top_p(kept, params.temperature, sum, mass);
    sum = row.weigh(kept, params.temperature);
  }
  return row.draw(params.noise * sum);
}

}  // namespace

Tensor sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
              const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
              const Tensor& output_indices) {
  check_sample(logits, temperature, top_k, top_p, min_p, seeds, output_indices);
  const int64_t rows = logits.size(0), vocab_size = logits.size(1);
  Tensor out = torch::stable::new_empty(logits, {rows}, ScalarType::Long);
  const float *values = data<float>(logits), *temperatures = data<float>(temperature),
              *top_ps = data<float>(top_p), *min_ps = data<float>(min_p);
  const int32_t* top_ks = data<int32_t>(top_k);
  const int64_t *seed = data<int64_t>(seeds), *index = data<int64_t>(output_indices);
  int64_t* token_ids = mutable_data<int64_t>(out);
  parallel_items(rows, vocab_size, [&](int64_t begin, int64_t end) {
    LogitsRow row(vocab_size);
    for (int64_t r = begin; r < end; ++r) {
      row.reset(values + r * vocab_size);
      token_ids[r] = sample_token(
          row, vocab_size,
          {temperatures[r], top_ks[r], top_ps[r], min_ps[r], sampling_noise(seed[r], index[r])});
    }
  });
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) { m.impl("sample", TORCH_BOX(&pyengine::sample)); }
