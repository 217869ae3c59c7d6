// The one way to run a loop on several threads.
#pragma once

#include <algorithm>
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

}  // namespace pyengine
