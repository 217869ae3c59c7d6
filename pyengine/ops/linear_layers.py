"""Linear layers and embeddings over packed float weights."""

import torch
from torch import Tensor

from pyengine.ops.library import ops


def pack_linear_weight(weight: Tensor) -> Tensor:
    """The numbers of weight [N, K] in the order in which `linear` reads them.

    Returns:
        For `linear` on this device only. On a CPU [panels, steps, 32, inputs of a step]: a panel
        is 32 outputs, a step one input of float32 or two of bfloat16; both dimensions padded with
        zeros. On a GPU [N, K, 1, 1], the same order, for bfloat16 and float16 with K a multiple
        of 8.
    """
    return ops.pack_linear_weight(weight)


@torch.library.register_fake("pyengine::pack_linear_weight")
def _(weight: Tensor) -> Tensor:
    num_outputs, num_inputs = weight.shape
    if weight.device.type == "cuda":
        return weight.new_empty(num_outputs, num_inputs, 1, 1)
    step = 2 if weight.dtype is torch.bfloat16 else 1
    return weight.new_empty(-(-num_outputs // 32), -(-num_inputs // step), 32, step)


def linear(
    x: Tensor,
    packed_weight: Tensor,
    bias: Tensor | None,
    num_outputs: int,
    *,
    float32_out: bool = False,
) -> Tensor:
    """x W^T + b, each row the same bits whatever rows are beside it.

    An element is summed in float32 over K in one fixed order, on any number of threads. Other
    devices have other orders.

    Args:
        x: [T, K], float32 or bfloat16 on a CPU, bfloat16 or float16 on a GPU; rows may lie apart,
            on a GPU at multiples of 16 bytes.
        packed_weight: W [N, K] of x's dtype, through pack_linear_weight.
        bias: [N] of x's dtype, or None.
        num_outputs: N.
        float32_out: return the sums themselves instead of rounding them to x's dtype.

    Returns:
        [T, N].
    """
    return ops.linear(x, packed_weight, bias, num_outputs, float32_out)


@torch.library.register_fake("pyengine::linear")
def _(
    x: Tensor,
    packed_weight: Tensor,
    bias: Tensor | None,
    num_outputs: int,
    float32_out: bool,
) -> Tensor:
    dtype = torch.float32 if float32_out else x.dtype
    return x.new_empty(x.shape[0], num_outputs, dtype=dtype)


def packed_embedding(
    token_ids: Tensor, packed_weight: Tensor, num_rows: int, row_size: int
) -> Tensor:
    """The rows token_ids (int64 [T], in [0, num_rows)) of a weight that lies packed.

    Args:
        packed_weight: W [num_rows, row_size], through pack_linear_weight.

    Returns:
        [T, row_size], in the weight's dtype.
    """
    return ops.packed_embedding(token_ids, packed_weight, num_rows, row_size)


@torch.library.register_fake("pyengine::packed_embedding")
def _(token_ids: Tensor, packed_weight: Tensor, num_rows: int, row_size: int) -> Tensor:
    return packed_weight.new_empty(token_ids.shape[0], row_size)
