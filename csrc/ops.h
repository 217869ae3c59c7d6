// Every operator, declared once. Schemas are in ops.cpp, argument checks in op_checks.h,
// implementations in cpu/ (and, later, cuda/).
//
// Letters in shapes: T tokens in the flat batch, S sequences, H query heads, K key/value heads,
// D head size, B blocks in the cache, P block size (tokens), V vocabulary, R rows of logits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include <torch/csrc/stable/tensor.h>

namespace pyengine {

using torch::stable::Tensor;

// x [T, 2N] float32 or bfloat16 -> [T, N]: silu(x[:, :N]) * x[:, N:].
Tensor silu_and_mul(const Tensor& x);

}  // namespace pyengine
