// How one attention call is cut into work items for threads. Knows neither torch nor instruction
// sets.
//
// Exactness: what a query row computes is fixed by its position alone. Keys come in tiles of
// kTileKeys at multiples of kTileKeys; a partition is kPartitionKeys of them, at multiples of
// kPartitionKeys, with a softmax of its own; partitions are merged in ascending order. The plan
// decides only which rows share a tile while it is in the cache, and which thread does what.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pyengine {

constexpr int64_t kTileKeys = 64;
constexpr int64_t kPartitionKeys = 256;
constexpr int64_t kMaxItemRows = 96;

// Some query tokens of a sequence, with all query heads of one key/value head: `num_rows` rows,
// token by token. They see keys of [first_key, end_key).
struct AttentionItem {
  int64_t seq, kv_head;
  int64_t first_token, num_tokens;  // in the flat batch
  int64_t first_position;           // of first_token, in its sequence
  int64_t first_key, end_key;
  // A whole item walks its partitions in order (partial < 0). A split item is one partition: its
  // rows' state goes to a place of its own, at this offset in the call's partial states.
  int64_t first_partition, end_partition;
  int64_t partial;

  // The keys of its partitions that it sees: [start_key, stop_key).
  int64_t start_key() const { return std::max(first_key, first_partition * kPartitionKeys); }
  int64_t stop_key() const { return std::min(end_key, end_partition * kPartitionKeys); }
};

struct AttentionShape {
  int64_t num_heads, num_kv_heads, head_size;
  int64_t sliding_window;          // 0: none
  const int32_t* query_start_loc;  // [num_seqs + 1]
  const int32_t* seq_lens;         // [num_seqs]
  int64_t num_seqs;

  // The first key that a query at `position` sees.
  int64_t first_key(int64_t position) const {
    return sliding_window > 0 ? std::max<int64_t>(0, position - sliding_window + 1) : 0;
  }
};

struct AttentionPlan {
  std::vector<AttentionItem> items;
  // Where runs of items begin, and the end of the last. A thread takes a run at a time: within one,
  // it asks memory for an item's first keys while it works on the item before.
  std::vector<int64_t> runs;
  std::vector<AttentionItem> merges;  // whole items whose partitions are split items
  int64_t partial_size = 0;           // floats
  int64_t cost = 0;                   // about the multiply-adds, memory traffic counted as such
  int64_t num_workers = 1;            // threads to run it on
};

// The largest vector of any instruction set, in floats; arrays in working memory are of whole ones.
constexpr int64_t kMaxVecSize = 16;
constexpr int64_t whole_vectors(int64_t floats) {
  return (floats + kMaxVecSize - 1) / kMaxVecSize * kMaxVecSize;
}

// Floats of the state of `rows` rows: see AttentionState in paged_attention_kernel.h.
constexpr int64_t attention_state_size(int64_t rows, int64_t head_size) {
  return rows * (whole_vectors(head_size) + kMaxVecSize) + whole_vectors(rows);
}

// Floats of working memory for a thread that attends or merges: see AttentionItemKernel in
// paged_attention_kernel.h.
inline int64_t attention_scratch_size(const AttentionShape& shape) {
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const int64_t rows = std::max(kMaxItemRows, group), size = whole_vectors(shape.head_size);
  return (2 * kTileKeys + 1) * size + 2 * kTileKeys + rows * size +
         2 * attention_state_size(rows, size);
}

// Groups items, which cost `cost_of` each and `cost` together, to runs. An item with many rows waits
// for arithmetic, not for memory: it stays alone, so that threads finish at about the same time.
template <typename CostOf>
void plan_runs(AttentionPlan& plan, int64_t num_threads, const CostOf& cost_of) {
  constexpr int64_t kRunsPerThread = 5, kManyTokens = 12;
  const int64_t run_cost = plan.cost / (kRunsPerThread * num_threads);
  int64_t cost = run_cost;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const AttentionItem& item = plan.items[i];
    if (cost >= run_cost || item.num_tokens >= kManyTokens) {
      plan.runs.push_back(static_cast<int64_t>(i));
      cost = 0;
    }
    cost += cost_of(item);
  }
  plan.runs.push_back(static_cast<int64_t>(plan.items.size()));
}

// A single long context would keep one thread busy per key/value head while others wait. So an item
// that is more than a small share of all work is split into its partitions; that bounds the number
// of split items, hence the memory for their states, whatever the batch.
inline AttentionPlan plan_attention(const AttentionShape& shape, int64_t num_threads) {
  constexpr int64_t kItemsPerThread = 4;
  constexpr int64_t kLoadCost = 8;  // to load and lay out a key and its value, in query rows
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const int64_t item_tokens = std::max<int64_t>(1, kMaxItemRows / group);
  AttentionPlan plan;
  const auto cost_of = [&](const AttentionItem& item) {
    return (item.stop_key() - item.start_key()) * (item.num_tokens * group + kLoadCost) *
           shape.head_size;
  };
  std::vector<AttentionItem> whole;
  for (int64_t s = 0; s < shape.num_seqs; ++s) {
    const int64_t begin = shape.query_start_loc[s], end = shape.query_start_loc[s + 1];
    // Longest first, so that the last items to finish are short.
    for (int64_t stop = end; stop > begin; stop -= item_tokens) {
      const int64_t first = std::max(begin, stop - item_tokens);
      const int64_t first_position = shape.seq_lens[s] - (end - first);
      const int64_t end_key = first_position + (stop - first);
      const int64_t first_key = shape.first_key(first_position);
      for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
        whole.push_back({s, head, first, stop - first, first_position, first_key, end_key,
                         first_key / kPartitionKeys, (end_key - 1) / kPartitionKeys + 1, -1});
        plan.cost += cost_of(whole.back());
      }
    }
  }
  const int64_t max_cost =
      num_threads > 1 ? plan.cost / (kItemsPerThread * num_threads) : plan.cost;
  for (AttentionItem item : whole) {
    if (cost_of(item) <= max_cost || item.end_partition - item.first_partition == 1) {
      plan.items.push_back(item);
      continue;
    }
    item.partial = plan.partial_size;
    plan.merges.push_back(item);
    AttentionItem part = item;
    for (int64_t p = item.first_partition; p < item.end_partition; ++p) {
      part.first_partition = p;
      part.end_partition = p + 1;
      part.partial = plan.partial_size;
      plan.items.push_back(part);
      plan.partial_size += attention_state_size(item.num_tokens * group, shape.head_size);
    }
  }
  plan_runs(plan, num_threads, cost_of);
  return plan;
}

}  // namespace pyengine
