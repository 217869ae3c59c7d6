#include "linear.h"

#include "../op_checks.h"
#include "../ops.h"
#include "isa.h"
#include "parallel.h"
#include "tensor_data.h"
#include "weight_memory.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <type_traits>

namespace pyengine {

Tensor pack_linear_weight(const Tensor& weight) {
  check_pack_linear_weight(weight);
  const int64_t num_outputs = weight.size(0), num_inputs = weight.size(1);
  const int64_t num_panels = (num_outputs + kLinearPanel - 1) / kLinearPanel;
  Tensor packed;
  dispatch_activation(weight.scalar_type(), [&](auto type) {
    using T = decltype(type);
    constexpr int64_t kStep = kLinearStep<T>;
    const int64_t num_steps = (num_inputs + kStep - 1) / kStep;
    packed = new_weight(weight, {num_panels, num_steps, kLinearPanel, kStep});
    const T* from = data<T>(weight);
    T* to = mutable_data<T>(packed);
    parallel_items(num_panels, num_inputs * kLinearPanel, [&](int64_t begin, int64_t end) {
      T* out = to + begin * num_steps * kLinearPanel * kStep;
      for (int64_t panel = begin; panel < end; ++panel) {
        for (int64_t step = 0; step < num_steps; ++step) {
          for (int64_t lane = 0; lane < kLinearPanel; ++lane) {
            const int64_t n = panel * kLinearPanel + lane;
            for (int64_t k = step * kStep; k < (step + 1) * kStep; ++k) {
              *out++ = n < num_outputs && k < num_inputs ? from[n * num_inputs + k] : T{};
            }
          }
        }
      }
    });
  });
  return packed;
}

namespace {

template <typename T, typename Out>
auto linear_kernel() {
  const TypedKernels<T>& typed = kernels().typed<T>();
  if constexpr (std::is_same_v<T, Out>) {
    return typed.linear;
  } else {
    return typed.linear_to_float;
  }
}

}  // namespace

template <typename T, typename Out>
void run_linear(const LinearArgs<T, Out>& args) {
  const int64_t num_panels = (args.num_outputs + kLinearPanel - 1) / kLinearPanel;
  const int64_t num_groups = (num_panels + kLinearPanelGroup - 1) / kLinearPanelGroup;
  const int64_t panel_cost = args.num_inputs * kLinearPanel * (1 + args.num_rows / 4);
  const auto kernel = linear_kernel<T, Out>();
  parallel_items(num_groups, panel_cost * kLinearPanelGroup, [&](int64_t begin, int64_t end) {
    kernel(args, begin * kLinearPanelGroup, std::min(num_panels, end * kLinearPanelGroup));
  });
}

template void run_linear(const LinearArgs<float, float>&);
template void run_linear(const LinearArgs<bfloat16, bfloat16>&);
template void run_linear(const LinearArgs<bfloat16, float>&);

namespace {

template <typename T, typename Out>
LinearArgs<T, Out> linear_args(const Tensor& x, const Tensor& packed_weight,
                               const std::optional<Tensor>& bias, const Tensor& y) {
  return {
      .x = data<T>(x),
      .weight = data<T>(packed_weight),
      .bias = bias ? data<T>(*bias) : nullptr,
      .y = mutable_data<Out>(y),
      .num_rows = x.size(0),
      .num_inputs = x.size(1),
      .num_outputs = y.size(1),
      .x_stride = x.stride(0),
      .y_stride = y.stride(0),
  };
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& packed_weight, const std::optional<Tensor>& bias,
              int64_t num_outputs, bool float32_out) {
  const bool is_float32 = x.scalar_type() == ScalarType::Float;
  check_linear(x, packed_weight, bias, num_outputs, kLinearPanel,
               is_float32 ? kLinearStep<float> : kLinearStep<bfloat16>);
  const ScalarType dtype = float32_out ? ScalarType::Float : x.scalar_type();
  Tensor y = torch::stable::new_empty(x, {x.size(0), num_outputs}, dtype);
  dispatch_activation(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if (float32_out) {
      run_linear(linear_args<T, float>(x, packed_weight, bias, y));
    } else {
      run_linear(linear_args<T, T>(x, packed_weight, bias, y));
    }
  });
  return y;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("pack_linear_weight", TORCH_BOX(&pyengine::pack_linear_weight));
  m.impl("linear", TORCH_BOX(&pyengine::linear));
}
