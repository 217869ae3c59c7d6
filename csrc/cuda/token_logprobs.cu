// Log-probabilities, a block a row. A row costs one pass over its logits to find the greatest, one
// for sum and rank, and up to four for each kBatch likeliest tokens.
#include "launch.h"
#include "logits_row.h"

namespace pyengine::cuda {
namespace {

// So many of the likeliest tokens are put in order at once.
constexpr int kBatch = kRowThreads;

struct LogprobsArgs {
  Pointer<const float> logits;       // [rows, vocab_size]
  Pointer<const int64_t> token_ids;  // [rows]
  Pointer<float> logprob;
  Pointer<int32_t> rank;
  Pointer<int64_t> top_ids;     // [rows, num_top]
  Pointer<float> top_logprobs;  // [rows, num_top]
  int32_t vocab_size, num_top;
  float weight_unit;
};

// Subtracts the logarithm of the sum of all exponentials.
struct LogSoftmax {
  double log_sum;

  __device__ __forceinline__ float operator()(uint32_t order) const {
    return static_cast<float>(static_cast<double>(logit_of(order)) - log_sum);
  }
};

// Without a greatest number, finite, there is no softmax.
__device__ LogSoftmax rank_token(const LogprobsArgs& args, const LogitsRow& row, int64_t r) {
  const Weight weight{row.greatest(), 1.0f, args.weight_unit};
  const bool has_softmax = isfinite(weight.max);
  // A token that is none counts as NaN does.
  const int64_t token = args.token_ids[r];
  const bool is_token = 0 <= token && token < args.vocab_size;
  const uint32_t token_order =
      order_of(is_token ? args.logits[r * args.vocab_size + token] : -INFINITY);
  uint64_t num_greater = 0, sum = 0;
  row.visit([&](int32_t, float logit) {
    num_greater += order_of(logit) > token_order;
    if (has_softmax) sum += weight(logit);
  });
  num_greater = row.sum(num_greater);
  sum = row.sum(sum);
  const double exponentials = static_cast<double>(sum) / static_cast<double>(weight.unit);
  const LogSoftmax log_softmax{has_softmax ? static_cast<double>(weight.max) + log(exponentials)
                                           : static_cast<double>(NAN)};
  if (threadIdx.x == 0) {
    args.logprob[r] = log_softmax(token_order);
    args.rank[r] = static_cast<int32_t>(1 + num_greater);
  }
  return log_softmax;
}

__global__ void __launch_bounds__(kRowThreads) token_logprobs_kernel(LogprobsArgs args) {
  SharedMemory shared;
  const int64_t r = blockIdx.x;
  const LogitsRow row(args.logits + r * args.vocab_size, args.vocab_size, shared);
  const LogSoftmax log_softmax = rank_token(args, row, r);

  // Tokens by order, then id, the lower one greater.
  const Pointer<uint64_t> tokens = shared.take<uint64_t>(kBatch);
  const Pointer<int32_t> num_tokens = shared.take<int32_t>(1);
  const int thread = static_cast<int>(threadIdx.x);
  Prefix done{0xffffffffu, -1};
  for (int32_t begin = 0; begin < args.num_top; begin += kBatch) {
    const int32_t size = min(args.num_top - begin, kBatch);
    const Prefix next = row.shortest(row.at_least(order_of(-INFINITY)), One{},
                                     [&](uint64_t) { return static_cast<uint64_t>(begin + size); });
    if (thread == 0) num_tokens[0] = 0;
    __syncthreads();
    row.visit([&](int32_t id, float logit) {
      const uint32_t order = order_of(logit);
      if (!next.contains(order, id) || done.contains(order, id)) return;
      tokens[atomicAdd(&num_tokens[0], 1)] =
          static_cast<uint64_t>(order) << 32 | ~static_cast<uint32_t>(id);
    });
    __syncthreads();
    if (thread < size) {
      const uint64_t token = tokens[thread];
      int place = 0;
      for (int i = 0; i < size; ++i) place += tokens[i] > token;
      const int64_t at = r * args.num_top + begin + place;
      args.top_ids[at] = ~static_cast<uint32_t>(token);
      args.top_logprobs[at] = log_softmax(static_cast<uint32_t>(token >> 32));
    }
    __syncthreads();
    done = next;
  }
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> token_logprobs(const Tensor& logits,
                                                          const Tensor& token_ids,
                                                          int64_t num_top) {
  check_token_logprobs(logits, token_ids, num_top);
  const int32_t vocab_size = vocab_size_of(logits);
  const int64_t rows = logits.size(0);
  const Tensor logprob = new_tensor(logits, {rows}, ScalarType::Float);
  const Tensor rank = new_tensor(logits, {rows}, ScalarType::Int);
  const Tensor top_ids = new_tensor(logits, {rows, num_top}, ScalarType::Long);
  const Tensor top_logprobs = new_tensor(logits, {rows, num_top}, ScalarType::Float);
  const LogprobsArgs args{.logits = pointer<const float>(logits),
                          .token_ids = pointer<const int64_t>(token_ids),
                          .logprob = pointer<float>(logprob),
                          .rank = pointer<int32_t>(rank),
                          .top_ids = pointer<int64_t>(top_ids),
                          .top_logprobs = pointer<float>(top_logprobs),
                          .vocab_size = vocab_size,
                          .num_top = static_cast<int32_t>(num_top),
                          .weight_unit = Weight::unit_of(vocab_size)};
  launch(logits, token_logprobs_kernel, {grid_size(rows), 1, 1}, kRowThreads,
         LogitsRow::shared_bytes() + SharedMemory::bytes<uint64_t>(kBatch) +
             SharedMemory::bytes<int32_t>(1),
         args);
  return {logprob, rank, top_ids, top_logprobs};
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) { m.impl("token_logprobs", TORCH_BOX(&pyengine::cuda::token_logprobs)); }
