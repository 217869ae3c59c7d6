#include "../op_checks.h"
#include "../ops.h"
#include "row_ops.h"
#include "tensor_data.h"

#include <torch/csrc/stable/library.h>

namespace pyengine {

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_rms_norm(x, weight, eps);
  const int64_t rows = x.size(0), size = x.size(1);
  Tensor out = torch::stable::new_empty(x, {rows, size});
  dispatch_activation(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const RmsNormArgs<T> args{data<T>(x), data<T>(weight), mutable_data<T>(out), size,
                              static_cast<float>(eps)};
    run_rms_norm(args, rows);
  });
  return out;
}

void fused_add_rms_norm_(const Tensor& x, const Tensor& residual, const Tensor& weight,
                         double eps) {
  check_fused_add_rms_norm_(x, residual, weight, eps);
  const int64_t rows = x.size(0), size = x.size(1);
  dispatch_activation(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const FusedAddRmsNormArgs<T> args{mutable_data<T>(x), mutable_data<T>(residual),
                                      data<T>(weight), size, static_cast<float>(eps)};
    run_fused_add_rms_norm(args, rows);
  });
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&pyengine::rms_norm));
  m.impl("fused_add_rms_norm_", TORCH_BOX(&pyengine::fused_add_rms_norm_));
}
