// The rows of the flat batch that need logits: the last ones of each sequence. A block a row.
#include "copy_rows.h"
#include "warp.h"

namespace pyengine::cuda {
namespace {

struct GatherArgs {
  Pointer<const int32_t> query_start_loc;  // [S + 1]
  Pointer<const int32_t> num_logits;       // [S]
  int64_t num_seqs;
};

// The row of the flat batch that is the `index`-th of those with logits, -1 if there are fewer. All
// lanes of a warp look together: each at one sequence of 32.
__device__ int64_t find_row(const GatherArgs& args, int64_t index) {
  const int lane = lane_index();
  int64_t first = 0;  // of the 32 sequences, among the rows with logits
  for (int64_t s = 0; s < args.num_seqs; s += kWarpSize) {
    const int64_t seq = s + lane;
    const int count = seq < args.num_seqs ? args.num_logits[seq] : 0;
    int end = count;  // of this sequence's, from `first` on
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int before = __shfl_up_sync(kAllLanes, end, static_cast<unsigned>(distance));
      if (lane >= distance) end += before;
    }
    const bool is_here = first + end - count <= index && index < first + end;
    const uint32_t found = __ballot_sync(kAllLanes, is_here);
    if (found != 0) {
      const int owner = __ffs(found) - 1;
      const int64_t from_end = __shfl_sync(kAllLanes, first + end - index, owner);
      return args.query_start_loc[s + owner + 1] - from_end;
    }
    first += __shfl_sync(kAllLanes, end, kWarpSize - 1);
  }
  return -1;
}

template <typename T>
__global__ void __launch_bounds__(kCopyThreads)
    gather_logits_kernel(CopyRowsArgs<T> rows, GatherArgs args) {
  copy_row(rows, find_row(args, blockIdx.x), blockIdx.x);
}

}  // namespace

Tensor gather_logits(const Tensor& hidden, const Tensor& query_start_loc, const Tensor& num_logits,
                     int64_t num_rows) {
  check_gather_logits(hidden, query_start_loc, num_logits, num_rows);
  const Tensor out = new_tensor(hidden, {num_rows, hidden.size(1)}, hidden.scalar_type());
  const GatherArgs args{pointer<const int32_t>(query_start_loc), pointer<const int32_t>(num_logits),
                        num_logits.size(0)};
  dispatch_activation(hidden.scalar_type(), [&](auto type) {
    using T = decltype(type);
    launch(hidden, gather_logits_kernel<T>, {grid_size(num_rows), 1, 1}, kCopyThreads, 0,
           copy_rows_args<T>(hidden, out), args);
  });
  return out;
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) { m.impl("gather_logits", TORCH_BOX(&pyengine::cuda::gather_logits)); }
