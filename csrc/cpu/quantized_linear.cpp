#include "quantized_linear.h"

#include "../op_checks.h"
#include "../ops.h"
#include "isa.h"
#include "parallel.h"
#include "tensor_data.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <type_traits>

namespace pyengine {
namespace {

template <typename T, typename Out>
auto quantized_linear_kernel() {
  const TypedKernels<T>& typed = kernels().typed<T>();
  if constexpr (std::is_same_v<T, Out>) {
    return typed.quantized_linear;
  } else {
    return typed.quantized_linear_to_float;
  }
}

}  // namespace

template <typename T>
void quantize_activations(const QuantizeActivationsArgs<T>& args, int64_t num_rows) {
  constexpr int64_t kCost = 8;  // of an element: many steps, not one
  const auto kernel = kernels().typed<T>().quantize_activations;
  parallel_items(num_rows, kCost * args.num_inputs,
                 [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

template <typename T, typename Out>
void run_quantized_linear(const QuantizedLinearArgs<T, Out>& args) {
  const int64_t num_panels = num_packed_panels(args.num_outputs);
  const int64_t panel_cost = args.num_inputs * kQuantizedPanel * (1 + args.num_rows / 4);
  // Few rows wait for memory, which a core reads faster in long streams.
  constexpr int64_t kFewRows = 6, kLongRangesPerWorker = 4;
  const auto kernel = quantized_linear_kernel<T, Out>();
  parallel_items(
      num_panels, panel_cost, [&](int64_t begin, int64_t end) { kernel(args, begin, end); },
      args.num_rows <= kFewRows ? kLongRangesPerWorker : kRangesPerWorker);
}

template void quantize_activations(const QuantizeActivationsArgs<float>&, int64_t);
template void quantize_activations(const QuantizeActivationsArgs<bfloat16>&, int64_t);
template void run_quantized_linear(const QuantizedLinearArgs<float, float>&);
template void run_quantized_linear(const QuantizedLinearArgs<bfloat16, bfloat16>&);
template void run_quantized_linear(const QuantizedLinearArgs<bfloat16, float>&);

namespace {

template <typename T, typename Out>
void quantize_and_multiply(const Tensor& x, const Tensor& packed_weight, int64_t ggml_type,
                           const std::optional<Tensor>& bias, const Tensor& y) {
  const int64_t num_rows = x.size(0), num_inputs = x.size(1);
  const Tensor quantized = torch::stable::new_empty(
      x, {quantized_activations_bytes(num_rows, num_inputs)}, ScalarType::Byte);
  auto* const groups = reinterpret_cast<ActivationGroup*>(mutable_data<uint8_t>(quantized));
  quantize_activations<T>({data<T>(x), groups, num_inputs, x.stride(0)}, num_rows);
  run_quantized_linear<T, Out>({
      .ggml_type = ggml_type,
      .x = groups,
      .weight = data<uint8_t>(packed_weight),
      .bias = bias ? data<T>(*bias) : nullptr,
      .y = mutable_data<Out>(y),
      .num_rows = num_rows,
      .num_inputs = num_inputs,
      .num_outputs = y.size(1),
      .y_stride = y.stride(0),
  });
}

}  // namespace

Tensor quantized_linear(const Tensor& x, const Tensor& packed_weight, int64_t ggml_type,
                        const std::optional<Tensor>& bias, int64_t num_outputs, bool float32_out) {
  check_quantized_input(x, ggml_type);
  check_packed_quantized_weight(packed_weight, num_packed_panels(num_outputs),
                                packed_panel_bytes(ggml_type, x.size(1)));
  check_bias(bias, x.scalar_type(), num_outputs);
  const ScalarType dtype = float32_out ? ScalarType::Float : x.scalar_type();
  Tensor y = torch::stable::new_empty(x, {x.size(0), num_outputs}, dtype);
  dispatch_activation(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if (float32_out) {
      quantize_and_multiply<T, float>(x, packed_weight, ggml_type, bias, y);
    } else {
      quantize_and_multiply<T, T>(x, packed_weight, ggml_type, bias, y);
    }
  });
  return y;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("quantized_linear", TORCH_BOX(&pyengine::quantized_linear));
}
