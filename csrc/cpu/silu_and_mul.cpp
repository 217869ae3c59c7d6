#include "../op_checks.h"
#include "../ops.h"
#include "row_ops.h"
#include "tensor_data.h"

#include <torch/csrc/stable/library.h>

namespace pyengine {

Tensor silu_and_mul(const Tensor& x) {
  check_silu_and_mul(x);
  const int64_t rows = x.size(0), size = x.size(1) / 2;
  Tensor out = torch::stable::new_empty(x, {rows, size});
  dispatch_activation(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const SiluAndMulArgs<T> args{data<T>(x), mutable_data<T>(out), size};
    run_silu_and_mul(args, rows);
  });
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("silu_and_mul", TORCH_BOX(&pyengine::silu_and_mul));
}
