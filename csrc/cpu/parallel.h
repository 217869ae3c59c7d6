// The one way to run a loop on several threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include <torch/csrc/stable/ops.h>

#include "thread_pool.h"

namespace pyengine {

// Calls body(item, worker) for each item of [0, num_items), the next one on whichever worker is
// free, so that a thread that shares its core takes fewer. worker < num_workers says whose scratch
// memory to use. Which worker does an item may change from run to run, so no result may depend on
// it. body must not throw.
template <typename Body>
void parallel_dynamic(int64_t num_items, int64_t num_workers, const Body& body) {
  ThreadPool::global().run(
      num_items, num_workers,
      [](const void* context, int64_t item, int64_t worker) {
        (*static_cast<const Body*>(context))(item, worker);
      },
      &body);
}

// How many threads are worth waking for work of `cost` elements touched; torch.set_num_threads
// sets the most.
inline int64_t workers_for(int64_t cost) {
  constexpr int64_t kMinCostPerWorker = 32768;
  return std::clamp<int64_t>(cost / kMinCostPerWorker, 1, torch::stable::get_num_threads());
}

constexpr int64_t kRangesPerWorker = 12;

// Calls body(begin, end) on sub-ranges that together cover [0, num_items), a few for each worker.
// `cost_per_item` is in elements touched. No result may depend on the split.
template <typename Body>
void parallel_items(int64_t num_items, int64_t cost_per_item, const Body& body,
                    int64_t ranges_per_worker = kRangesPerWorker) {
  const int64_t num_workers = workers_for(num_items * cost_per_item);
  const int64_t num_ranges = num_workers == 1 ? 1 : num_workers * ranges_per_worker;
  const int64_t length = std::max<int64_t>(1, (num_items + num_ranges - 1) / num_ranges);
  parallel_dynamic((num_items + length - 1) / length, num_workers,
                   [&](int64_t range, int64_t /*worker*/) {
                     body(range * length, std::min(num_items, (range + 1) * length));
                   });
}

}  // namespace pyengine
