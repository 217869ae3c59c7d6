#include "../op_checks.h"
#include "../ops.h"
#include "kernels.h"
#include "parallel.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/library.h>

#include <cstring>

namespace pyengine {

Tensor embedding(const Tensor& token_ids, const Tensor& weight) {
  check_embedding(token_ids, weight);
  const int64_t num_tokens = token_ids.size(0), size = weight.size(1);
  const int64_t* ids = data<int64_t>(token_ids);
  check_range("token_ids", ids, num_tokens, 0, weight.size(0));
  const int64_t row_bytes = size * weight.element_size();
  Tensor out = torch::stable::new_empty(weight, {num_tokens, size});
  const char* source = static_cast<const char*>(weight.const_data_ptr());
  char* target = static_cast<char*>(out.mutable_data_ptr());
  parallel_items(num_tokens, size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(target + i * row_bytes, source + ids[i] * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  });
  return out;
}

Tensor packed_embedding(const Tensor& token_ids, const Tensor& packed_weight, int64_t num_rows,
                        int64_t row_size) {
  const bool is_float32 = packed_weight.scalar_type() == ScalarType::Float;
  check_packed_embedding(token_ids, packed_weight, num_rows, row_size, kLinearPanel,
                         is_float32 ? kLinearStep<float> : kLinearStep<bfloat16>);
  const int64_t num_tokens = token_ids.size(0);
  const int64_t* ids = data<int64_t>(token_ids);
  check_range("token_ids", ids, num_tokens, 0, num_rows);
  Tensor out = torch::stable::new_empty(packed_weight, {num_tokens, row_size});
  dispatch_activation(packed_weight.scalar_type(), [&](auto type) {
    using T = decltype(type);
    constexpr int64_t kStep = kLinearStep<T>;
    const int64_t panel_size = packed_weight.size(1) * kLinearPanel * kStep;
    parallel_items(num_tokens, row_size, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t panel = ids[i] / kLinearPanel, lane = ids[i] % kLinearPanel;
        const T* from = data<T>(packed_weight) + panel * panel_size + lane * kStep;
        T* to = mutable_data<T>(out) + i * row_size;
        for (int64_t k = 0; k < row_size; ++k) {
          to[k] = from[k / kStep * kLinearPanel * kStep + k % kStep];
        }
      }
    });
  });
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("embedding", TORCH_BOX(&pyengine::embedding));
  m.impl("packed_embedding", TORCH_BOX(&pyengine::packed_embedding));
}
