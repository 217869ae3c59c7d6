#include "../ggml_types.h"
#include "../op_checks.h"
#include "../ops.h"
#include "isa.h"
#include "parallel.h"
#include "tensor_data.h"

#include <torch/csrc/stable/library.h>

namespace pyengine {

Tensor dequantize(const Tensor& data_bytes, int64_t ggml_type, ScalarType dtype) {
  check_dequantize(data_bytes, ggml_type, dtype);
  const GgmlType& type = *find_ggml_type(ggml_type);
  const int64_t rows = data_bytes.size(0), row_bytes = data_bytes.size(1);
  const int64_t row_size = row_bytes / type.block_bytes * type.block_size;
  Tensor out = torch::stable::new_empty(data_bytes, {rows, row_size}, dtype);
  dispatch_activation(dtype, [&](auto element) {
    using T = decltype(element);
    const DequantizeArgs<T> args{ggml_type, data<uint8_t>(data_bytes), row_bytes,
                                 mutable_data<T>(out), row_size};
    parallel_items(rows, row_size, [&](int64_t begin, int64_t end) {
      kernels().typed<T>().dequantize(args, begin, end);
    });
  });
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("dequantize", TORCH_BOX(&pyengine::dequantize));
}
