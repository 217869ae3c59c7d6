// Rows of a table by token id. An id that is none gives zeros.
#include "copy_rows.h"

namespace pyengine::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kCopyThreads)
    embedding_kernel(CopyRowsArgs<T> args, Pointer<const int64_t> token_ids) {
  copy_row(args, token_ids[blockIdx.x], blockIdx.x);
}

// `weight` is [V, N], or has further dimensions of 1.
Tensor look_up(const Tensor& token_ids, const Tensor& weight) {
  const int64_t num_tokens = token_ids.size(0);
  const Tensor out = new_tensor(weight, {num_tokens, weight.size(1)}, weight.scalar_type());
  dispatch_activation(weight.scalar_type(), [&](auto type) {
    using T = decltype(type);
    launch(weight, embedding_kernel<T>, {grid_size(num_tokens), 1, 1}, kCopyThreads, 0,
           copy_rows_args<T>(weight, out), pointer<const int64_t>(token_ids));
  });
  return out;
}

}  // namespace

Tensor embedding(const Tensor& token_ids, const Tensor& weight) {
  check_embedding(token_ids, weight);
  return look_up(token_ids, weight);
}

// A packed weight is as it was, see pack_linear_weight.
Tensor packed_embedding(const Tensor& token_ids, const Tensor& packed_weight, int64_t num_rows,
                        int64_t row_size) {
  check_packed_embedding(token_ids, packed_weight, num_rows, row_size, 1, 1);
  return look_up(token_ids, packed_weight);
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) {
  m.impl("embedding", TORCH_BOX(&pyengine::cuda::embedding));
  m.impl("packed_embedding", TORCH_BOX(&pyengine::cuda::packed_embedding));
}
