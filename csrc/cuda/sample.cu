// Sampling, a block a row. A row costs one pass over its logits if it is greedy, and one to draw;
// top-k and top-p add up to three each, and more where ties are split or the goal lies low.
#include "../philox.h"
#include "launch.h"
#include "logits_row.h"

namespace pyengine::cuda {
namespace {

struct SampleArgs {
  Pointer<const float> logits;  // [rows, vocab_size]
  Pointer<const float> temperature, top_p, min_p;
  Pointer<const int32_t> top_k;
  Pointer<const int64_t> seeds, output_indices;
  Pointer<int64_t> out;
  int32_t vocab_size;
  float weight_unit;
};

// p >= min_p * p_max, solved for the logit; the likeliest token always passes.
__device__ uint32_t min_p_threshold(float max, float temperature, float min_p) {
  const double log_min_p = log(static_cast<double>(min(min_p, 1.0f)));
  return order_of(static_cast<float>(max + static_cast<double>(temperature) * log_min_p));
}

__device__ int32_t sample_token(const SampleArgs& args, const LogitsRow& row, int64_t r) {
  const float temperature = args.temperature[r], top_p = args.top_p[r], min_p = args.min_p[r];
  const int32_t top_k = args.top_k[r];
  // A row whose greatest logit is infinite has no softmax: +inf is certain, and a row without a
  // number is no distribution at all. Both go the greedy way.
  if (!(temperature > 0) || !isfinite(row.greatest())) return row.first();

  const Weight weight{row.greatest(), temperature, args.weight_unit};
  Prefix kept = row.at_least(order_of(-INFINITY) + 1);
  if (min_p > 0) {
    kept.threshold = max(kept.threshold, min_p_threshold(row.greatest(), temperature, min_p));
  }
  if (top_k > 0 && top_k < args.vocab_size) {
    kept = row.shortest(kept, One{}, [&](uint64_t) { return static_cast<uint64_t>(top_k); });
  }
  if (top_p < 1) {
    kept = row.shortest(kept, weight, [&](uint64_t sum) {
      const double mass = static_cast<double>(top_p) * static_cast<double>(sum);
      return mass > 1 ? static_cast<uint64_t>(ceil(mass)) : 1;  // so that a token is kept
    });
  }
  // The bits are a fraction of 2^64.
  const uint64_t bits = sampling_bits(args.seeds[r], args.output_indices[r]);
  return row.token_at(kept, weight, [&](uint64_t sum) { return __umul64hi(bits, sum); });
}

__global__ void __launch_bounds__(kRowThreads) sample_kernel(SampleArgs args) {
  SharedMemory shared;
  const int64_t r = blockIdx.x;
  const LogitsRow row(args.logits + r * args.vocab_size, args.vocab_size, shared);
  const int32_t token = sample_token(args, row, r);
  if (threadIdx.x == 0) args.out[r] = token;
}

}  // namespace

Tensor sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
              const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
              const Tensor& output_indices) {
  check_sample(logits, temperature, top_k, top_p, min_p, seeds, output_indices);
  const int32_t vocab_size = vocab_size_of(logits);
  const Tensor out = new_tensor(logits, {logits.size(0)}, ScalarType::Long);
  const SampleArgs args{.logits = pointer<const float>(logits),
                        .temperature = pointer<const float>(temperature),
                        .top_p = pointer<const float>(top_p),
                        .min_p = pointer<const float>(min_p),
                        .top_k = pointer<const int32_t>(top_k),
                        .seeds = pointer<const int64_t>(seeds),
                        .output_indices = pointer<const int64_t>(output_indices),
                        .out = pointer<int64_t>(out),
                        .vocab_size = vocab_size,
                        .weight_unit = Weight::unit_of(vocab_size)};
  launch(logits, sample_kernel, {grid_size(logits.size(0)), 1, 1}, kRowThreads,
         LogitsRow::shared_bytes(), args);
  return out;
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) { m.impl("sample", TORCH_BOX(&pyengine::cuda::sample)); }
