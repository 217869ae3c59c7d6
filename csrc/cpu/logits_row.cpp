#include "logits_row.h"

#include <algorithm>
#include <cmath>
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
      block_sum_(block_max_.size()) {}

void LogitsRow::reset(const float* logits) {
  logits_ = logits;
  kernels_.block_maxima(logits, vocab_size_, block_max_.data());
  max_ = *std::max_element(block_max_.begin(), block_max_.end());
}

template <typename Visit>
void LogitsRow::visit_blocks(float bound, const Visit& visit) const {
  for (size_t b = 0; b < block_max_.size(); ++b) {
    if (block_max_[b] < bound) continue;
    const int64_t begin = static_cast<int64_t>(b) * kLogitsBlock;
    const int64_t end = std::min(begin + kLogitsBlock, vocab_size_);
    for (int64_t id = begin; id < end; ++id) {
      if (!visit(number_or_minus_infinity(logits_[id]), id)) return;
    }
  }
}

int64_t LogitsRow::argmax() const {
  int64_t first = 0;
  visit_blocks(max_, [&](float logit, int64_t id) {
    first = id;
    return logit != max_;
  });
  return first;
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

Prefix LogitsRow::prefix_with_ties(float threshold, int64_t num_ties) const {
  Prefix prefix{threshold, -1};
  visit_blocks(threshold, [&](float logit, int64_t id) {
    if (logit != threshold) return true;
    prefix.last_tie = id;
    return --num_ties > 0;
  });
  return prefix;
}

Prefix LogitsRow::top_k(int64_t k) {
  const float bound = bound_of_top(k);
  values_.clear();
  visit_blocks(bound, [&](float logit, int64_t) {
    if (logit >= bound) values_.push_back(logit);
    return true;
  });
  const auto last = values_.begin() + (k - 1);
  std::nth_element(values_.begin(), last, values_.end(), std::greater<>());
  const float threshold = *last;
  // nth_element has put all greater ones in front.
  return prefix_with_ties(threshold, k - std::count_if(values_.begin(), last, [&](float logit) {
                                       return logit > threshold;
                                     }));
}

double LogitsRow::weigh_block(int64_t block, const Prefix& kept, float temperature,
                              float* weights) const {
  const int64_t begin = block * kLogitsBlock;
  const int64_t size = std::min(kLogitsBlock, vocab_size_ - begin);
  const SoftmaxArgs args{max_, temperature, kept.threshold, kept.last_tie + 1 - begin};
  return kernels_.softmax_weights(args, logits_ + begin, size, weights);
}

double LogitsRow::weigh(const Prefix& kept, float temperature) {
  weighed_ = kept;
  temperature_ = temperature;
  float weights[kLogitsBlock];
  double sum = 0;
  for (size_t b = 0; b < block_sum_.size(); ++b) {
    const bool has_some = block_max_[b] >= kept.threshold;
    block_sum_[b] =
        has_some ? weigh_block(static_cast<int64_t>(b), kept, temperature, weights) : 0.0;
    sum += block_sum_[b];
  }
  return sum;
}

int64_t LogitsRow::draw(double mass) {
  double sum = 0;  // goes through the values that weigh() went through, so it ends above `mass`
  size_t b = 0;
  while (sum + block_sum_[b] <= mass) sum += block_sum_[b++];

  float weights[kLogitsBlock];
  const int64_t begin = static_cast<int64_t>(b) * kLogitsBlock;
  const int64_t size = std::min(kLogitsBlock, vocab_size_ - begin);
  weigh_block(static_cast<int64_t>(b), weighed_, temperature_, weights);
  // Summed in another order than the block's sum was, the weights may end a rounding error below
  // `mass`: then it falls on the last token that has any.
  int64_t drawn = begin;
  for (int64_t i = 0; i < size; ++i) {
    if (weights[i] == 0.0f) continue;
    drawn = begin + i;
    sum += static_cast<double>(weights[i]);
    if (sum > mass) break;
  }
  return drawn;
}

Prefix LogitsRow::top_p(const Prefix& kept, float temperature, double mass) {
  // Take ever more of the likeliest tokens, until they hold the mass or there are no more.
  double sum = 0;
  for (int64_t count = 64;; count *= 8) {
    const float bound = std::max(bound_of_top(count), kept.threshold);
    values_.clear();
    visit_blocks(bound, [&](float logit, int64_t id) {
      if (logit >= bound && kept.contains(logit, id)) values_.push_back(logit);
      return true;
    });
    weights_.resize(values_.size());
    const SoftmaxArgs args{max_, temperature, kMinusInfinity, 0};
    sum = kernels_.softmax_weights(args, values_.data(), static_cast<int64_t>(values_.size()),
                                   weights_.data());
    if (sum >= mass || bound == kept.threshold) break;
  }
  candidates_.resize(values_.size());
  for (size_t i = 0; i < values_.size(); ++i) candidates_[i] = {values_[i], weights_[i]};

  // Quickselect by weight: narrow down to the logit at which the running sum reaches the mass.
  auto begin = candidates_.begin(), end = candidates_.end();
  double missing = std::max(mass, std::numeric_limits<double>::min());
  while (begin != end) {
    const auto middle = begin + (end - begin) / 2;
    const float a = begin->logit, b = middle->logit, c = (end - 1)->logit;
    const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    const auto end_of_greater =
        std::partition(begin, end, [&](const Candidate& x) { return x.logit > pivot; });
    double greater = 0;
    for (auto x = begin; x != end_of_greater; ++x) greater += static_cast<double>(x->weight);
    if (greater >= missing) {
      end = end_of_greater;
      continue;
    }
    missing -= greater;
    const auto end_of_equal =
        std::partition(end_of_greater, end, [&](const Candidate& x) { return x.logit == pivot; });
    const double weight = static_cast<double>(end_of_greater->weight);
    const auto num_equal = static_cast<double>(end_of_equal - end_of_greater);
    if (weight * num_equal >= missing) {
      return prefix_with_ties(pivot, static_cast<int64_t>(std::ceil(missing / weight)));
    }
    missing -= weight * num_equal;
    begin = end_of_equal;
  }
  return kept;  // rounding errors left the mass out of reach
}

std::vector<int64_t> LogitsRow::ids(const Prefix& kept) const {
  std::vector<int64_t> found;
  visit_blocks(kept.threshold, [&](float logit, int64_t id) {
    if (kept.contains(logit, id)) found.push_back(id);
    return true;
  });
  return found;
}

int64_t LogitsRow::count_greater(float logit) const {
  int64_t count = 0;
  visit_blocks(logit, [&](float other, int64_t) {
    count += other > logit;
    return true;
  });
  return count;
}

}  // namespace pyengine
