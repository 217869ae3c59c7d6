#include "../op_checks.h"
#include "../ops.h"
#include "parallel.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/library.h>

#include <vector>

namespace pyengine {
namespace {

struct Penalties {
  float repetition, presence, frequency;
};

// The history of one row: prompt tokens, then output tokens.
struct History {
  const int64_t* begin;
  const int64_t* end_of_prompt;
  const int64_t* end;
};

// Counts of tokens in the output of a row, and which tokens it holds at all. The tables cover the
// vocabulary and are left clean after each row, so that a row costs its history's length.
class TokenCounts {
 public:
  explicit TokenCounts(int64_t vocab_size) : counts_(static_cast<size_t>(vocab_size), kAbsent) {}

  void apply(const History& history, const Penalties& penalties, float* logits) {
    for (const int64_t* t = history.begin; t != history.end_of_prompt; ++t) count(*t) = 0;
    for (const int64_t* t = history.end_of_prompt; t != history.end; ++t) {
      count(*t) = std::max(count(*t), 0) + 1;
    }
    for (const int64_t* t = history.begin; t != history.end; ++t) {
      if (count(*t) == kAbsent) continue;  // seen earlier in this loop
      logits[*t] = penalize(logits[*t], count(*t), penalties);
      count(*t) = kAbsent;
    }
  }

 private:
  static constexpr int32_t kAbsent = -1;

  int32_t& count(int64_t token) { return counts_[static_cast<size_t>(token)]; }

  static float penalize(float logit, int32_t output_count, const Penalties& penalties) {
    logit = logit > 0 ? logit / penalties.repetition : logit * penalties.repetition;
    if (output_count == 0) return logit;
    return logit - penalties.frequency * static_cast<float>(output_count) - penalties.presence;
  }

  std::vector<int32_t> counts_;
};

}  // namespace

void apply_penalties_(const Tensor& logits, const Tensor& token_ids, const Tensor& token_start_loc,
                      const Tensor& num_prompt_tokens, const Tensor& repetition,
                      const Tensor& presence, const Tensor& frequency) {
  check_apply_penalties(logits, token_ids, token_start_loc, num_prompt_tokens, repetition, presence,
                        frequency);
  const int64_t rows = logits.size(0), vocab_size = logits.size(1), total = token_ids.size(0);
  const int64_t* ids = data<int64_t>(token_ids);
  const int32_t* starts = data<int32_t>(token_start_loc);
  const int32_t* prompt_lens = data<int32_t>(num_prompt_tokens);
  check_offsets("token_start_loc", starts, rows, total);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t length = starts[r + 1] - starts[r];
    STD_TORCH_CHECK(prompt_lens[r] >= 0 && prompt_lens[r] <= length, "num_prompt_tokens[", r,
                    "] must be in [0, ", length, "], the length of the row's history, got ",
                    prompt_lens[r]);
  }
  check_range("token_ids", ids, total, 0, vocab_size);

  float* values = mutable_data<float>(logits);
  const float *repetitions = data<float>(repetition), *presences = data<float>(presence),
              *frequencies = data<float>(frequency);
  parallel_items(rows, vocab_size, [&](int64_t begin, int64_t end) {
    TokenCounts counts(vocab_size);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t* history = ids + starts[r];
      counts.apply({history, history + prompt_lens[r], ids + starts[r + 1]},
                   {repetitions[r], presences[r], frequencies[r]}, values + r * vocab_size);
    }
  });
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("apply_penalties_", TORCH_BOX(&pyengine::apply_penalties_));
}
