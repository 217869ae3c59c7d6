// Penalties, a block a row: its history goes into a hash table, whose entries are then penalized,
// each by one thread. The tables of all rows lie in one buffer, in which a row has twice as many
// entries as its history has tokens: the cost is the histories', whatever the vocabulary's size.
#include "launch.h"

namespace pyengine::cuda {
namespace {

constexpr int kThreads = 1024;

// Where an entry of a table lies depends on which thread was first, but not what it says.
struct TokenCount {
  uint32_t key;        // the token's id + 1, or 0: no token
  uint32_t in_output;  // how often it is there
};

struct PenaltyArgs {
  Pointer<float> logits;  // [rows, vocab_size]
  Pointer<const int64_t> token_ids;
  Pointer<const int32_t> token_start_loc, num_prompt_tokens;
  Pointer<const float> repetition, presence, frequency;
  Pointer<TokenCount> tables;  // [2 * num_tokens]
  int32_t num_tokens, vocab_size;
};

struct Penalties {
  float repetition, presence, frequency;

  __device__ __forceinline__ float operator()(float logit, uint32_t num_in_output) const {
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (num_in_output == 0) return logit;
    return logit - frequency * static_cast<float>(num_in_output) - presence;
  }
};

// Finds the token's entry, or makes one. There is a free one unless another row's history overlaps
// this one, which is an error that nobody can be told of here: then the token may be left out.
__device__ __forceinline__ void count(Pointer<TokenCount> table, uint32_t size, uint32_t key,
                                      bool is_output) {
  constexpr uint32_t kGoldenRatio = 0x9E3779B9u;  // Fibonacci hashing: spreads successive ids
  auto at = static_cast<uint32_t>(uint64_t{key * kGoldenRatio} * size >> 32);
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t before = atomicCAS(&table[at].key, 0u, key);
    if (before == 0 || before == key) {
      if (is_output) atomicAdd(&table[at].in_output, 1u);
      return;
    }
    if (++at == size) at = 0;
  }
}

// A start or a token that is out of range, which the host could only learn by waiting, is taken as
// the nearest one in range, or left out.
__global__ void __launch_bounds__(kThreads) apply_penalties_kernel(PenaltyArgs args) {
  const int64_t r = blockIdx.x;
  const Penalties penalize{args.repetition[r], args.presence[r], args.frequency[r]};
  if (penalize.repetition == 1 && penalize.presence == 0 && penalize.frequency == 0) return;
  const int32_t begin = min(max(args.token_start_loc[r], 0), args.num_tokens);
  const int32_t end = min(max(args.token_start_loc[r + 1], begin), args.num_tokens);
  const int32_t end_of_prompt = begin + min(args.num_prompt_tokens[r], end - begin);

  const Pointer<TokenCount> table = args.tables + int64_t{begin} * 2;
  const uint32_t size = 2 * static_cast<uint32_t>(end - begin);
  for (uint32_t i = threadIdx.x; i < size; i += kThreads) table[i] = {0, 0};
  __syncthreads();
  for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += kThreads) {
    const int64_t token = args.token_ids[i];
    if (token < 0 || token >= args.vocab_size) continue;
    count(table, size, static_cast<uint32_t>(token) + 1, i >= end_of_prompt);
  }
  __syncthreads();
  const Pointer<float> logits = args.logits + r * args.vocab_size;
  for (uint32_t i = threadIdx.x; i < size; i += kThreads) {
    const TokenCount token = table[i];
    if (token.key == 0) continue;
    float& logit = logits[token.key - 1];
    logit = penalize(logit, token.in_output);
  }
}

}  // namespace

void apply_penalties_(const Tensor& logits, const Tensor& token_ids, const Tensor& token_start_loc,
                      const Tensor& num_prompt_tokens, const Tensor& repetition,
                      const Tensor& presence, const Tensor& frequency) {
  check_apply_penalties(logits, token_ids, token_start_loc, num_prompt_tokens, repetition, presence,
                        frequency);
  const int32_t vocab_size = vocab_size_of(logits);
  const int64_t num_tokens = token_ids.size(0);
  STD_TORCH_CHECK(num_tokens <= INT32_MAX, "token_ids must have ", INT32_MAX,
                  " elements at most, got ", num_tokens);
  const Tensor tables = new_tensor(logits, {num_tokens * 2, 2}, ScalarType::Int);
  const PenaltyArgs args{.logits = pointer<float>(logits),
                         .token_ids = pointer<const int64_t>(token_ids),
                         .token_start_loc = pointer<const int32_t>(token_start_loc),
                         .num_prompt_tokens = pointer<const int32_t>(num_prompt_tokens),
                         .repetition = pointer<const float>(repetition),
                         .presence = pointer<const float>(presence),
                         .frequency = pointer<const float>(frequency),
                         .tables = pointer<TokenCount>(tables),
                         .num_tokens = static_cast<int32_t>(num_tokens),
                         .vocab_size = vocab_size};
  launch(logits, apply_penalties_kernel, {grid_size(logits.size(0)), 1, 1}, kThreads, 0, args);
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) { m.impl("apply_penalties_", TORCH_BOX(&pyengine::cuda::apply_penalties_)); }
