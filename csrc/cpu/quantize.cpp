#include "../ggml_types.h"
#include "../op_checks.h"
#include "../ops.h"
#include "isa.h"
#include "parallel.h"
#include "tensor_data.h"

#include <torch/csrc/stable/library.h>

#include <atomic>

namespace pyengine {

Tensor quantize(const Tensor& weight, int64_t ggml_type) {
  check_quantize(weight, ggml_type);
  const GgmlType& type = *find_ggml_type(ggml_type);
  const int64_t rows = weight.size(0), row_blocks = weight.size(1) / type.block_size;
  Tensor out =
      torch::stable::new_empty(weight, {rows, row_blocks * type.block_bytes}, ScalarType::Byte);
  std::atomic<bool> is_finite = true;
  dispatch_activation(weight.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const QuantizeArgs<T> args{ggml_type, data<T>(weight), mutable_data<uint8_t>(out)};
    // An element is looked at about 30 times.
    parallel_items(rows * row_blocks, type.block_size * 30, [&](int64_t begin, int64_t end) {
      if (!kernels().typed<T>().quantize(args, begin, end)) is_finite = false;
    });
  });
  STD_TORCH_CHECK(is_finite, "weight must be finite to be quantized, but holds a NaN or infinity");
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) { m.impl("quantize", TORCH_BOX(&pyengine::quantize)); }
