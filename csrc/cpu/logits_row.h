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

#include <cstdint>
#include <limits>
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
  // The shortest prefix within `kept` whose weights, exp((logit - max) / temperature), sum to at
  // least `mass`; never empty.
  Prefix top_p(const Prefix& kept, float temperature, double mass);

  // Sum of the weights of the tokens in `kept`; remembers it block by block for draw().
  double weigh(const Prefix& kept, float temperature);
  // The token that `mass`, in [0, sum), falls on when the weights of the last weigh() are laid end
  // to end in the order of ids.
  int64_t draw(double mass);

  // The ids in `kept`, in the order of ids.
  std::vector<int64_t> ids(const Prefix& kept) const;
  // How many tokens have a logit strictly greater than `logit`.
  int64_t count_greater(float logit) const;

 private:
  struct Candidate {
    float logit;
    float weight;
  };

  // Calls visit(logit, id) for the tokens of each block that has a logit of at least `bound`.
  // NaN is passed as -inf. Stops when visit returns false.
  template <typename Visit>
  void visit_blocks(float bound, const Visit& visit) const;

  // A logit that at least `count` tokens reach, close to the greatest such one.
  float bound_of_top(int64_t count);
  // The prefix that ends at the `num_ties`-th token whose logit is `threshold`.
  Prefix prefix_with_ties(float threshold, int64_t num_ties) const;
  double weigh_block(int64_t block, const Prefix& kept, float temperature, float* weights) const;

  const Kernels& kernels_;
  const int64_t vocab_size_;
  const float* logits_ = nullptr;
  float max_ = 0;
  std::vector<float> block_max_;
  std::vector<double> block_sum_;
  // What the last weigh() was asked.
  Prefix weighed_{};
  float temperature_ = 1;
  // Scratch of the selections.
  std::vector<float> sorted_max_;
  std::vector<float> values_;
  std::vector<float> weights_;
  std::vector<Candidate> candidates_;
};

}  // namespace pyengine
