// The product of the op `quantized_linear`, on raw pointers: also a part of larger ops.
#pragma once

#include "kernels.h"

namespace pyengine {

// What quantize_activations writes for so many rows, to memory aligned to 64 bytes.
inline int64_t quantized_activations_bytes(int64_t num_rows, int64_t num_inputs) {
  return num_rows * (num_inputs / kQuantizedGroup) * static_cast<int64_t>(sizeof(ActivationGroup));
}

// Rounds each group of 32 values of x [num_rows, num_inputs] to int8 times a scale, on the pool's
// threads. A row's result depends on the row alone.
template <typename T>
void quantize_activations(const QuantizeActivationsArgs<T>& args, int64_t num_rows);

// y = x W^T + b, on the pool's threads. Out is T or float. A row of y depends on its row of x and
// on the weights alone.
template <typename T, typename Out>
void run_quantized_linear(const QuantizedLinearArgs<T, Out>& args);

}  // namespace pyengine
