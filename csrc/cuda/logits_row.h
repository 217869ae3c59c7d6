// One row of logits and a block of threads, and the questions that sampling asks, answered without
// sorting the vocabulary. Knows nothing of torch.
//
// The order of tokens, everywhere: logit descending, ties by ascending id; NaN counts as -inf.
// Every filter (min-p, top-k, top-p) keeps a prefix of that order, so a set of kept tokens is a
// threshold and the last id that is in among the tokens equal to it.
//
// Questions are about sums over tokens of an amount: 1, or a weight in fixed point. Sums of integers
// are the same in any order, so atomic additions and any division of labour give the same answer.
#pragma once

#include "warp.h"

#include <cmath>

namespace pyengine::cuda {

constexpr int kRowThreads = 1024;

// A number that grows with the logit, the same for equal logits: 0.0 and -0.0, NaN and -inf.
__device__ __forceinline__ uint32_t order_of(float logit) {
  constexpr uint32_t kSign = 0x80000000u, kMinusInfinity = 0xff800000u;
  uint32_t bits = __float_as_uint(logit);
  if (logit == 0) bits = 0;
  if (logit != logit) bits = kMinusInfinity;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

__device__ __forceinline__ float logit_of(uint32_t order) {
  constexpr uint32_t kSign = 0x80000000u;
  return __uint_as_float((order & kSign) != 0 ? order & ~kSign : ~order);
}

struct Prefix {
  uint32_t threshold;  // tokens of a greater order are in,
  int32_t last_tie;    // and those of the same up to this id

  __device__ __forceinline__ bool contains(uint32_t order, int32_t id) const {
    return order > threshold || (order == threshold && id <= last_tie);
  }
};

// The amount of a token that is counted.
struct One {
  __device__ __forceinline__ uint64_t operator()(float /*logit*/) const { return 1; }
};

// The softmax weight of a token, exp((logit - max) / temperature), in units of 1 / unit, rounded
// down. `max` is finite.
//
// The sum over V tokens mustn't reach 2^64, so `unit` is 2^63 / V, rounded down to a power of two:
// 2^46 for 131072 tokens. What rounding takes from all tokens together is then less than 2^-29 of
// the likeliest one's weight, while float32 rounds that one weight by 2^-25.
struct Weight {
  float max, temperature, unit;

  __device__ __forceinline__ uint64_t operator()(float logit) const {
    if (order_of(logit) == order_of(-INFINITY)) return 0;
    return static_cast<uint64_t>(expf((logit - max) / temperature) * unit);
  }

  static float unit_of(int64_t vocab_size) {
    int exponent = 63;
    while (vocab_size > int64_t{1} << (63 - exponent)) --exponent;
    return std::ldexp(1.0f, exponent);
  }
};

// The sum of amounts in each of kSize buckets, as two words: additions to a word of shared memory
// are in hardware, those to two are not.
class Histogram {
 public:
  static constexpr int kSize = 2048;

  __device__ explicit Histogram(SharedMemory& shared)
      : low_(shared.take<uint32_t>(kSize)), high_(shared.take<uint32_t>(kSize)) {}
  static constexpr int64_t shared_bytes() { return 2 * SharedMemory::bytes<uint32_t>(kSize); }

  __device__ __forceinline__ void clear() const {
    for (int i = static_cast<int>(threadIdx.x); i < kSize; i += kRowThreads) low_[i] = high_[i] = 0;
  }

  __device__ __forceinline__ void add(int bucket, uint64_t amount) const {
    const uint32_t low = static_cast<uint32_t>(amount);
    const uint32_t before = atomicAdd(&low_[bucket], low);
    const uint32_t high = static_cast<uint32_t>(amount >> 32) + (before + low < low ? 1 : 0);
    if (high != 0) atomicAdd(&high_[bucket], high);
  }

  __device__ __forceinline__ uint64_t operator[](int bucket) const {
    return static_cast<uint64_t>(high_[bucket]) << 32 | low_[bucket];
  }

 private:
  Pointer<uint32_t> low_, high_;
};

// All threads of a block of kRowThreads make the same calls and get the same answers.
class LogitsRow {
 public:
  __device__ LogitsRow(Pointer<const float> logits, int32_t vocab_size, SharedMemory& shared)
      : logits_(logits),
        vocab_size_(vocab_size),
        histogram_(shared),
        warps_(shared.take<uint64_t>(kWarps)),
        found_(shared.take<Found>(1)) {
    find_first();
  }
  static constexpr int64_t shared_bytes() {
    return Histogram::shared_bytes() + SharedMemory::bytes<uint64_t>(kWarps) +
           SharedMemory::bytes<Found>(1);
  }

  // The first token of the order, and its logit: -inf if there is no other number in the row.
  __device__ __forceinline__ int32_t first() const { return first_; }
  __device__ __forceinline__ float greatest() const { return logit_of(highest_); }

  // The tokens of at least this order.
  __device__ __forceinline__ Prefix at_least(uint32_t order) const {
    return {order, vocab_size_ - 1};
  }

  // The shortest prefix whose amounts sum to at least goal(the sum of the amounts in `kept`) > 0;
  // `kept` if it has no more than that. Tokens of equal logits have equal amounts.
  template <typename Amount, typename Goal>
  __device__ Prefix shortest(const Prefix& kept, const Amount& amount, const Goal& goal) const;

  // The token in `kept` at which the sum of amounts in the order of ids exceeds goal(their sum),
  // which is less than their sum.
  template <typename Amount, typename Goal>
  __device__ int32_t token_at(const Prefix& kept, const Amount& amount, const Goal& goal) const;

  // Calls body(id, logit) for each token, by some thread.
  template <typename Body>
  __device__ __forceinline__ void visit(const Body& body) const {
    visit(0, vocab_size_, static_cast<int>(threadIdx.x), kRowThreads, body);
  }

  // The sum of the threads' values.
  __device__ __forceinline__ uint64_t sum(uint64_t value) const {
    return reduce_block(value, warps_, Add{});
  }

 private:
  static constexpr int kWarps = kRowThreads / kWarpSize;

  // What one thread tells the others: an index, the sum in front of it, and its own amount.
  struct Found {
    uint64_t before, amount;
    int32_t index;
  };

  __device__ void find_first();

  // The same for the ids from `begin` to `end`, by the `worker`-th of `num_workers` threads.
  template <typename Body>
  __device__ __forceinline__ void visit(int32_t begin, int32_t end, int worker, int num_workers,
                                        const Body& body) const;

  __device__ __forceinline__ Found found() const {
    __syncthreads();
    const Found result = found_[0];
    __syncthreads();
    return result;
  }

  Pointer<const float> logits_;
  int32_t vocab_size_;
  Histogram histogram_;
  Pointer<uint64_t> warps_;
  Pointer<Found> found_;
  int32_t first_ = 0;
  uint32_t highest_ = 0;  // the first token's order
  uint32_t likely_ = 0;   // an order that so many tokens reach as there are threads, or all
};

// Reads 16 bytes at a time where they are aligned, two such vectors on their way at once.
template <typename Body>
__device__ __forceinline__ void LogitsRow::visit(int32_t begin, int32_t end, int worker,
                                                 int num_workers, const Body& body) const {
  if (begin >= end) return;
  constexpr int kVector = 4;
  const auto address = reinterpret_cast<uintptr_t>(&logits_[begin]);
  const int to_aligned = static_cast<int>(-(address / sizeof(float)) % kVector);
  const int32_t head = min(to_aligned, end - begin);
  const int32_t num_vectors = (end - begin - head) / kVector;
  const int32_t tail = end - begin - head - num_vectors * kVector;
  for (int i = worker; i < head + tail; i += num_workers) {
    const int32_t id = begin + i + (i < head ? 0 : num_vectors * kVector);
    body(id, logits_[id]);
  }
  const Pointer<const float4> vectors = cast<const float4>(logits_ + (begin + head));
  const auto visit_vector = [&](int32_t i, const float4& x) {
    const int32_t id = begin + head + i * kVector;
    body(id, x.x);
    body(id + 1, x.y);
    body(id + 2, x.z);
    body(id + 3, x.w);
  };
  int32_t i = worker;
  for (; i + num_workers < num_vectors; i += 2 * num_workers) {
    const float4 x = vectors[i], y = vectors[i + num_workers];
    visit_vector(i, x);
    visit_vector(i + num_workers, y);
  }
  if (i < num_vectors) visit_vector(i, vectors[i]);
}

// The threads' own maxima are of different tokens, so that kRowThreads tokens reach the least of
// them: few of the others do, as a rule a twentieth of a large vocabulary.
__device__ inline void LogitsRow::find_first() {
  uint64_t best = 0;  // order, then id, the lower one greater
  visit([&](int32_t id, float logit) {
    const uint64_t rank = static_cast<uint64_t>(order_of(logit)) << 32 | ~static_cast<uint32_t>(id);
    if (rank > best) best = rank;
  });
  likely_ = static_cast<uint32_t>(reduce_block(best, warps_, Min{}) >> 32);
  best = reduce_block(best, warps_, Max{});
  highest_ = static_cast<uint32_t>(best >> 32);
  first_ = static_cast<int32_t>(~static_cast<uint32_t>(best));
}

// A radix selection: each round divides the orders from `lowest` to `highest` into buckets, from the
// top, and goes on in the one in which the running sum reaches the goal. A round decides 11 bits of
// the order, so there are three at most. What the first one finds below `likely` it takes as a bucket
// of its own; if it is that one, which is rare, up to three more follow.
template <typename Amount, typename Goal>
__device__ Prefix LogitsRow::shortest(const Prefix& kept, const Amount& amount,
                                      const Goal& goal) const {
  constexpr int kOwn = Histogram::kSize / kRowThreads;
  uint32_t lowest = kept.threshold, highest = highest_;
  uint32_t likely = min(max(likely_, lowest), highest);
  uint64_t missing = 0;
  for (bool is_first = true;; is_first = false) {
    const int num_buckets = likely > lowest ? Histogram::kSize - 1 : Histogram::kSize;
    int shift = 0;
    while ((highest - likely) >> shift >= static_cast<uint32_t>(num_buckets)) ++shift;

    histogram_.clear();
    __syncthreads();
    // Successive tokens of one bucket are added at once: threads would wait for one another.
    int bucket = 0;
    uint64_t sum = 0;
    visit([&](int32_t id, float logit) {
      const uint32_t order = order_of(logit);
      if (order < lowest || order > highest || !kept.contains(order, id)) return;
      const int own =
          order >= likely ? static_cast<int>((highest - order) >> shift) : Histogram::kSize - 1;
      if (own != bucket) {
        if (sum != 0) histogram_.add(bucket, sum);
        bucket = own;
        sum = 0;
      }
      sum += amount(logit);
    });
    if (sum != 0) histogram_.add(bucket, sum);
    __syncthreads();

    const int begin = static_cast<int>(threadIdx.x) * kOwn;
    uint64_t own_sum = 0;
    for (int i = 0; i < kOwn; ++i) own_sum += histogram_[begin + i];
    auto [before, total] = sum_before(own_sum, warps_);
    if (is_first) {
      missing = goal(total);
      if (missing >= total) return kept;
    }
    for (int i = 0; i < kOwn; ++i) {
      const uint64_t own = histogram_[begin + i];
      if (before < missing && missing - before <= own) found_[0] = {before, own, begin + i};
      before += own;
    }
    const Found at = found();
    missing -= at.before;

    if (at.index >= num_buckets) {
      highest = likely - 1;
    } else {
      highest -= static_cast<uint32_t>(at.index) << shift;
      lowest = highest - min((1u << shift) - 1, highest - likely);
    }
    likely = lowest;
    if (missing == at.amount) break;  // the whole bucket, as a rule of one token
    if (highest == lowest) {
      const uint64_t each = amount(logit_of(lowest));
      const uint64_t num_ties = (missing + each - 1) / each;
      const auto is_tie = [&](float logit) { return uint64_t{order_of(logit) == lowest}; };
      return {lowest, token_at(at_least(lowest), is_tie, [&](uint64_t) { return num_ties - 1; })};
    }
  }
  return at_least(lowest);  // above the end of `kept`, or it would be all of `kept`
}

// Each round gives the warps a part each of the ids, and goes on in the part that has the token.
template <typename Amount, typename Goal>
__device__ int32_t LogitsRow::token_at(const Prefix& kept, const Amount& amount,
                                       const Goal& goal) const {
  const auto amount_of = [&](int32_t id, float logit) {
    return kept.contains(order_of(logit), id) ? amount(logit) : 0;
  };
  const int thread = static_cast<int>(threadIdx.x);
  int32_t begin = 0, size = vocab_size_;
  uint64_t missing = 0;
  for (bool is_first = true;; is_first = false) {
    const bool is_last = size <= kRowThreads;  // a token a thread
    const int32_t part = is_last ? 1 : (size + kRowThreads - 1) / kRowThreads * kWarpSize;
    uint64_t own = 0;
    if (is_last) {
      if (thread < size) own = amount_of(begin + thread, logits_[begin + thread]);
    } else {
      const int32_t part_begin = min(warp_index() * part, size);
      const int32_t part_end = min(part_begin + part, size);
      visit(begin + part_begin, begin + part_end, lane_index(), kWarpSize,
            [&](int32_t id, float logit) { own += amount_of(id, logit); });
      own = reduce_warp(own, Add{});
      if (lane_index() != 0) own = 0;
    }
    const auto [before, total] = sum_before(own, warps_);
    if (is_first) missing = goal(total);
    if (before <= missing && missing - before < own) {
      found_[0] = {before, own, is_last ? thread : warp_index()};
    }
    const Found at = found();
    begin += at.index * part;
    if (is_last) return begin;
    size = min(part, size - at.index * part);
    missing -= at.before;
  }
}

}  // namespace pyengine::cuda
