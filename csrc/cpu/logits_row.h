// One row of logits, and the questions that sampling asks about it, answered without sorting the
// vocabulary. Knows nothing of torch.
//
// The order of tokens, everywhere: logit descending, ties by ascending id; NaN counts as -inf.
// Every filter (min-p, top-k, top-p) keeps a prefix of that order, so a set of kept tokens is a
// threshold and the last id that is in among the tokens equal to it.
//
// The row is seen as blocks of kLogitsBlock tokens, whose maxima are taken in one pass; a question
// about high logits then looks only into the few blocks that can hold the answer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "isa.h"

namespace pyengine {

// The logit by which a token is ordered.
inline float number_or_minus_infinity(float logit) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  return logit > kMinusInfinity ? logit : kMinusInfinity;
}

struct Prefix {
  float threshold;   // tokens with a greater logit are in,
  int64_t last_tie;  // and those with an equal one up to this id

  bool contains(float logit, int64_t id) const {
    return logit > threshold || (logit == threshold && id <= last_tie);
  }
};

class LogitsRow {
 public:
  explicit LogitsRow(int64_t vocab_size);

  // Moves on to another row; `logits` [vocab_size] must outlive its use here.
  void reset(const float* logits);

  // -inf if there is no other number in the row.
  float max() const { return max_; }
  // The first token of the order.
  int64_t argmax() const;

  // Every token.
  Prefix all() const;
  // The tokens with a logit of at least `threshold`.
  Prefix at_least(float threshold) const;
  // The k first tokens, 1 <= k <= vocab_size.
  Prefix top_k(int64_t k);

  // Gives each token in `kept` its weight, exp((logit - max) / temperature), and any other 0, for
  // the two questions below. Returns their sum. `max` must be finite.
  double weigh(const Prefix& kept, float temperature);
  // The shortest prefix whose weights sum to at least `mass` < sum; never empty. The arguments are
  // those of the last weigh(), and the sum that it returned.
  Prefix top_p(const Prefix& kept, float temperature, double sum, double mass);
  // The token that `mass`, in [0, sum), falls on when the weights are laid end to end in the order
  // of ids.
  int64_t draw(double mass) const;

  // The ids in `kept`, in the order of ids.
  std::vector<int64_t> ids(const Prefix& kept) const;
  // How many tokens have a logit strictly greater than `logit`.
  int64_t count_greater(float logit) const;

 private:
  struct Candidate {
    float logit;
    float weight;
  };

  // Calls body(begin, end) with the ids of each block that has a logit of at least `bound`.
  template <typename Body>
  void visit_blocks(float bound, const Body& body) const;

  // A logit that at least `count` tokens reach, close to the greatest such one.
  float bound_of_top(int64_t count);
  // The prefix whose last token is the `num_ties`-th one with a logit of `threshold`.
  Prefix ending_at(float threshold, int64_t num_ties) const;
  // Makes candidates of tokens that adjoin in order, at one of which the running sum of weights
  // reaches `mass`; returns what is missing before the first of them.
  double collect_edge(float threshold, float temperature, double sum, double mass);
  // The prefix at which the weights of the candidates reach `missing`; `kept` if they don't.
  Prefix reach(double missing, const Prefix& kept);

  int64_t end_of_block(int64_t begin) const { return std::min(begin + kLogitsBlock, vocab_size_); }

  const Kernels& kernels_;
  const int64_t vocab_size_;
  const float* logits_ = nullptr;
  float max_ = 0;
  std::vector<float> block_max_;
  std::vector<double> block_sum_;
  std::unique_ptr<float[]> weights_;  // [vocab_size]; those of blocks without a sum are not set
  // Scratch of the selections.
  std::vector<float> sorted_max_;
  std::vector<float> values_;
  std::vector<double> histogram_;
  std::vector<Candidate> candidates_;
};

template <typename Body>
void LogitsRow::visit_blocks(float bound, const Body& body) const {
  for (size_t b = 0; b < block_max_.size(); ++b) {
    if (block_max_[b] < bound) continue;
    const int64_t begin = static_cast<int64_t>(b) * kLogitsBlock;
    body(begin, end_of_block(begin));
  }
}

}  // namespace pyengine
