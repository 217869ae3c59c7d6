"""Linear layers and embeddings in the integers of packed ggml blocks."""

import torch
from torch import Tensor

from pyengine.ops.ggml import GGML_BLOCKS
from pyengine.ops.library import ops

# The ggml types that quantized_linear computes with: number -> bytes that a panel of 32 outputs
# takes for a block of inputs, packed.
_PACKED_BLOCK_BYTES = {
    2: 576,
    3: 640,
    6: 704,
    7: 768,
    8: 1088,
    12: 4736,
    13: 5760,
    14: 6720,
}


def pack_quantized_weight(blocks: Tensor, ggml_type: int) -> Tensor:
    """The integers and scales of a quantized weight in the order in which `quantized_linear`
    reads them, in about as many bytes.

    Args:
        blocks: uint8 [N, row_bytes], the rows of W [N, K] as ggml blocks.
        ggml_type: one of the types of GGML_BLOCKS with blocks of more than one element.

    Returns:
        uint8 [panels of 32 outputs, bytes of a panel]. For this device only.
    """
    return ops.pack_quantized_weight(blocks, ggml_type)


@torch.library.register_fake("pyengine::pack_quantized_weight")
def _(blocks: Tensor, ggml_type: int) -> Tensor:
    num_outputs, row_bytes = blocks.shape
    num_blocks = row_bytes // GGML_BLOCKS[ggml_type][1]
    return blocks.new_empty(-(-num_outputs // 32), num_blocks * _PACKED_BLOCK_BYTES[ggml_type])


def quantized_linear(
    x: Tensor,
    packed_weight: Tensor,
    ggml_type: int,
    bias: Tensor | None,
    num_outputs: int,
    *,
    float32_out: bool = False,
) -> Tensor:
    """x W^T + b in the weight's integers, each row the same bits whatever rows are beside it.

    x is rounded to int8: in each row, 32 inputs share a scale, their greatest magnitude / 127.
    Products with the weight's integers are summed exactly within a group of inputs, then scaled
    and summed in float32, the groups in one fixed order. NaN or infinity in x make their row NaN.

    Args:
        x: [T, K], float32 or bfloat16; rows may lie apart. K is a multiple of the type's block.
        packed_weight: W [N, K], through pack_quantized_weight.
        ggml_type: its type.
        bias: [N] of x's dtype, or None.
        num_outputs: N.
        float32_out: return the sums themselves instead of rounding them to x's dtype.

    Returns:
        [T, N].
    """
    return ops.quantized_linear(x, packed_weight, ggml_type, bias, num_outputs, float32_out)


@torch.library.register_fake("pyengine::quantized_linear")
def _(
    x: Tensor,
    packed_weight: Tensor,
    ggml_type: int,
    bias: Tensor | None,
    num_outputs: int,
    float32_out: bool,
) -> Tensor:
    dtype = torch.float32 if float32_out else x.dtype
    return x.new_empty(x.shape[0], num_outputs, dtype=dtype)


def quantized_embedding(
    token_ids: Tensor,
    packed_weight: Tensor,
    ggml_type: int,
    num_rows: int,
    row_size: int,
    dtype: torch.dtype,
) -> Tensor:
    """The rows token_ids (int64 [T], in [0, num_rows)) of W [num_rows, row_size], dequantized.

    Args:
        packed_weight: W, through pack_quantized_weight.
        ggml_type: its type.
        dtype: float32 (the values of ggml's own dequantization) or bfloat16.

    Returns:
        [T, row_size].
    """
    return ops.quantized_embedding(token_ids, packed_weight, ggml_type, num_rows, row_size, dtype)


@torch.library.register_fake("pyengine::quantized_embedding")
def _(
    token_ids: Tensor,
    packed_weight: Tensor,
    ggml_type: int,
    num_rows: int,
    row_size: int,
    dtype: torch.dtype,
) -> Tensor:
    return packed_weight.new_empty(token_ids.shape[0], row_size, dtype=dtype)
