// Sums and maxima over the threads of a warp and of a block, in an order that is always the same.
#pragma once

#include "platform.h"

namespace pyengine {

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarpSize; }

// combine(a, b) of all lanes' values, for each lane: pairs at distance 16 first, then 8, 4, 2, 1.
template <typename T, typename Combine>
__device__ __forceinline__ T reduce_warp(T value, const Combine& combine) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// The same over all threads of a block, for each thread: within warps, then over the warps' results
// in ascending order. `shared` is of one element a warp, and free again afterwards.
template <typename T, typename Combine>
__device__ __forceinline__ T reduce_block(T value, Pointer<T> shared, const Combine& combine) {
  value = reduce_warp(value, combine);
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  if (lane_index() == 0) shared[warp_index()] = value;
  __syncthreads();
  value = shared[0];
  for (int w = 1; w < num_warps; ++w) value = combine(value, shared[w]);
  __syncthreads();
  return value;
}

// A thread's place in a running sum over the threads of a block.
struct RunningSum {
  uint64_t before;  // over all threads with a lower index
  uint64_t total;   // over all threads
};

// The running sum of `value`, for each thread. `shared` is as for reduce_block.
__device__ __forceinline__ RunningSum sum_before(uint64_t value, Pointer<uint64_t> shared) {
  uint64_t through = value;  // from the warp's first lane through this one
  for (unsigned distance = 1; distance < kWarpSize; distance *= 2) {
    const uint64_t earlier = __shfl_up_sync(kAllLanes, through, distance);
    if (lane_index() >= static_cast<int>(distance)) through += earlier;
  }
  if (lane_index() == kWarpSize - 1) shared[warp_index()] = through;
  __syncthreads();
  RunningSum sum{through - value, 0};
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarpSize; ++w) {
    if (w < warp_index()) sum.before += shared[w];
    sum.total += shared[w];
  }
  __syncthreads();
  return sum;
}

struct Add {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

struct Min {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

}  // namespace pyengine
