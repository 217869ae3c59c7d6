// The selection of top-p, the one filter whose edge depends on every token's probability.
#include "logits_row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace pyengine {
namespace {

// The smallest positive number.
template <typename T>
constexpr T kSmallest = std::numeric_limits<T>::min();

// top_p() looks among so many tokens first.
constexpr int64_t kFewTokens = 64;

// The histogram of collect_edge(): a token's bucket grows with its logit's distance from the greatest.
// There are several copies, because an addition has to wait for the last one to the same place.
constexpr int32_t kNumBuckets = 256;
constexpr int32_t kNumCopies = 8;

struct Buckets {
  float max;
  float scale;

  int32_t index_of(float logit) const {
    const float place = (max - logit) * scale;
    return static_cast<int32_t>(place < kNumBuckets - 1 ? place : kNumBuckets - 1);
  }
};

}  // namespace

Prefix LogitsRow::top_p(const Prefix& kept, float temperature, double sum, double mass) {
  mass = std::max(mass, kSmallest<double>);  // so that at least one token is kept
  // As a rule the mass is held by few tokens.
  const float bound_of_few = std::max(bound_of_top(kFewTokens), kept.threshold);
  double sum_of_few = 0;
  candidates_.clear();
  visit_blocks(bound_of_few, [&](int64_t begin, int64_t end) {
    for (int64_t id = begin; id < end; ++id) {
      if (!(logits_[id] >= bound_of_few) || weights_[id] == 0) continue;
      candidates_.push_back({logits_[id], weights_[id]});
      sum_of_few += static_cast<double>(weights_[id]);
    }
  });
  if (sum_of_few < mass) mass = collect_edge(kept.threshold, temperature, sum, mass);
  return reach(mass, kept);
}

// A histogram of the weights over the logits says in which bucket the running sum reaches the mass.
// Both passes are free of branches on a token's logit, which no processor can predict.
double LogitsRow::collect_edge(float threshold, float temperature, double sum, double mass) {
  // Tokens lighter than half of (sum - mass) / vocab_size hold less than sum - mass together, so
  // the prefix ends above them. They, and whatever else is below, share the last bucket.
  const double depth = std::log(2 * static_cast<double>(vocab_size_) / (sum - mass));
  const float bound =
      std::max(threshold, static_cast<float>(max_ - static_cast<double>(temperature) * depth));
  const Buckets buckets{max_, kNumBuckets / std::max(max_ - bound, kSmallest<float>)};

  int32_t index[kLogitsBlock];
  histogram_.assign(kNumBuckets * kNumCopies, 0.0);
  visit_blocks(bound, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < end - begin; ++i) index[i] = buckets.index_of(logits_[begin + i]);
    for (int64_t i = 0; i < end - begin; ++i) {
      const int64_t place = index[i] * kNumCopies + i % kNumCopies;
      histogram_[static_cast<size_t>(place)] += static_cast<double>(weights_[begin + i]);
    }
  });
  int32_t bucket = 0;
  for (; bucket < kNumBuckets - 1; ++bucket) {
    const auto copies = histogram_.begin() + bucket * kNumCopies;
    const double weight = std::accumulate(copies, copies + kNumCopies, 0.0);
    if (weight >= mass) break;
    mass -= weight;
  }

  candidates_.clear();
  visit_blocks(bound, [&](int64_t begin, int64_t end) {
    int64_t found[kLogitsBlock], num_found = 0;
    for (int64_t i = 0; i < end - begin; ++i) index[i] = buckets.index_of(logits_[begin + i]);
    for (int64_t i = 0; i < end - begin; ++i) {
      found[num_found] = begin + i;
      num_found += (index[i] == bucket) & (weights_[begin + i] > 0);
    }
    for (int64_t i = 0; i < num_found; ++i) {
      candidates_.push_back({logits_[found[i]], weights_[found[i]]});
    }
  });
  return mass;
}

// Quickselect by weight: narrows the candidates down to the logit at which their running sum
// reaches `missing` > 0.
Prefix LogitsRow::reach(double missing, const Prefix& kept) {
  auto begin = candidates_.begin(), end = candidates_.end();
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
      return ending_at(pivot, static_cast<int64_t>(std::ceil(missing / weight)));
    }
    missing -= weight * num_equal;
    begin = end_of_equal;
  }
  return kept;  // rounding errors left the mass out of reach
}

}  // namespace pyengine
