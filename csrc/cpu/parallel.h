// The one way to run a loop on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <torch/csrc/stable/ops.h>

namespace pyengine {

// Calls body(begin, end) on sub-ranges that together cover [0, num_items). `cost_per_item` is in
// elements touched; work worth less than a thread's wake-up stays on the caller's thread. The
// split may change with the thread count, so no result may depend on it.
template <typename Body>
void parallel_items(int64_t num_items, int64_t cost_per_item, const Body& body) {
  constexpr int64_t kMinCostPerThread = 16384;
  const int64_t grain =
      std::max<int64_t>(1, kMinCostPerThread / std::max<int64_t>(1, cost_per_item));
  torch::stable::parallel_for(0, num_items, grain, body);
}

// How many threads are worth waking for work of `cost` elements touched.
inline int64_t workers_for(int64_t cost) {
  constexpr int64_t kMinCostPerWorker = 65536;
  return std::clamp<int64_t>(cost / kMinCostPerWorker, 1, torch::stable::get_num_threads());
}

// Calls body(item, worker) for each item of [0, num_items), the next one on whichever worker is
// free, so that a thread that shares its core takes fewer. worker < num_workers says whose scratch
// memory to use. Which worker does an item may change from run to run, so no result may depend on
// it.
template <typename Body>
void parallel_dynamic(int64_t num_items, int64_t num_workers, const Body& body) {
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, std::min(num_items, num_workers), 1,
                              [&](int64_t worker, int64_t /*end*/) {
                                for (int64_t item = next++; item < num_items; item = next++) {
                                  body(item, worker);
                                }
                              });
}

}  // namespace pyengine
