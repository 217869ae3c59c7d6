#include "logits_row.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace pyengine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

LogitsRow::LogitsRow(int64_t vocab_size)
    : kernels_(kernels()),
      vocab_size_(vocab_size),
      block_max_(static_cast<size_t>((vocab_size + kLogitsBlock - 1) / kLogitsBlock)),
      block_sum_(block_max_.size()),
      weights_(new float[static_cast<size_t>(vocab_size)]) {}

void LogitsRow::reset(const float* logits) {
  logits_ = logits;
  kernels_.block_maxima(logits, vocab_size_, block_max_.data());
  max_ = *std::max_element(block_max_.begin(), block_max_.end());
}

int64_t LogitsRow::argmax() const {
  if (max_ == kMinusInfinity) return 0;
  const auto block = std::find(block_max_.begin(), block_max_.end(), max_);
  const int64_t begin = (block - block_max_.begin()) * kLogitsBlock;
  return std::find(logits_ + begin, logits_ + end_of_block(begin), max_) - logits_;
}

Prefix LogitsRow::all() const { return at_least(kMinusInfinity); }

Prefix LogitsRow::at_least(float threshold) const { return {threshold, vocab_size_ - 1}; }

float LogitsRow::bound_of_top(int64_t count) {
  if (count > static_cast<int64_t>(block_max_.size())) return kMinusInfinity;
  sorted_max_ = block_max_;
  const auto last = sorted_max_.begin() + (count - 1);
  std::nth_element(sorted_max_.begin(), last, sorted_max_.end(), std::greater<>());
  return *last;
}

Prefix LogitsRow::ending_at(float threshold, int64_t num_ties) const {
  const auto is_tie = [&](int64_t id) {
    return number_or_minus_infinity(logits_[id]) == threshold;
  };
  int64_t last_tie = -1;
  visit_blocks(threshold, [&](int64_t begin, int64_t end) {
    int32_t num_in_block = 0;
    for (int64_t id = begin; id < end; ++id) num_in_block += is_tie(id);
    if (num_in_block == 0) return;
    for (int64_t id = begin; id < end && num_ties > 0; ++id) {
      if (!is_tie(id)) continue;
      last_tie = id;
      --num_ties;
    }
  });
  return {threshold, last_tie};
}

Prefix LogitsRow::top_k(int64_t k) {
  const float bound = bound_of_top(k);
  values_.clear();
  visit_blocks(bound, [&](int64_t begin, int64_t end) {
    for (int64_t id = begin; id < end; ++id) {
      const float logit = number_or_minus_infinity(logits_[id]);
      if (logit >= bound) values_.push_back(logit);
    }
  });
  const auto last = values_.begin() + (k - 1);
  std::nth_element(values_.begin(), last, values_.end(), std::greater<>());
  const float threshold = *last;  // with all greater ones in front of it
  const auto is_greater = [&](float logit) { return logit > threshold; };
  return ending_at(threshold, k - std::count_if(values_.begin(), last, is_greater));
}

double LogitsRow::weigh(const Prefix& kept, float temperature) {
  double sum = 0;
  for (size_t b = 0; b < block_sum_.size(); ++b) {
    block_sum_[b] = 0;
    if (block_max_[b] < kept.threshold) continue;
    const int64_t begin = static_cast<int64_t>(b) * kLogitsBlock;
    const SoftmaxArgs args{max_, temperature, kept.threshold, kept.last_tie + 1 - begin};
    block_sum_[b] = kernels_.softmax_weights(args, logits_ + begin, end_of_block(begin) - begin,
                                             weights_.get() + begin);
    sum += block_sum_[b];
  }
  return sum;
}

int64_t LogitsRow::draw(double mass) const {
  double sum = 0;  // goes through the values that weigh() went through, so it ends above `mass`
  size_t b = 0;
  while (sum + block_sum_[b] <= mass) sum += block_sum_[b++];

  // Summed in another order than the block's sum was, the weights may end a rounding error below
  // `mass`: then it falls on the last token that has any.
  const int64_t begin = static_cast<int64_t>(b) * kLogitsBlock, end = end_of_block(begin);
  int64_t drawn = begin;
  for (int64_t id = begin; id < end; ++id) {
    if (weights_[id] == 0.0f) continue;
    drawn = id;
    sum += static_cast<double>(weights_[id]);
    if (sum > mass) break;
  }
  return drawn;
}

std::vector<int64_t> LogitsRow::ids(const Prefix& kept) const {
  std::vector<int64_t> found;
  visit_blocks(kept.threshold, [&](int64_t begin, int64_t end) {
    for (int64_t id = begin; id < end; ++id) {
      if (kept.contains(number_or_minus_infinity(logits_[id]), id)) found.push_back(id);
    }
  });
  return found;
}

int64_t LogitsRow::count_greater(float logit) const {
  int64_t count = 0;
  visit_blocks(logit, [&](int64_t begin, int64_t end) {
    for (int64_t id = begin; id < end; ++id) count += logits_[id] > logit;
  });
  return count;
}

}  // namespace pyengine
