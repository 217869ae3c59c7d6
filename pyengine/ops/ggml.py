"""ggml's quantized blocks: read and written."""

import torch
from torch import Tensor

from pyengine.ops.library import ops

# The ggml types that dequantize reads: number -> (elements, bytes) of a block.
GGML_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    30: (1, 2),  # BF16
}


def dequantize(data: Tensor, ggml_type: int, dtype: torch.dtype) -> Tensor:
    """Rows of ggml blocks to float32 (the values of ggml's own dequantization) or bfloat16.

    Args:
        data: uint8 [rows, row_bytes], whole blocks.
        ggml_type: a key of GGML_BLOCKS.
        dtype: float32 or bfloat16 (float32 rounded to nearest even).

    Returns:
        [rows, row_size].
    """
    return ops.dequantize(data, ggml_type, dtype)


@torch.library.register_fake("pyengine::dequantize")
def _(data: Tensor, ggml_type: int, dtype: torch.dtype) -> Tensor:
    num_elements, num_bytes = GGML_BLOCKS[ggml_type]
    return data.new_empty(data.shape[0], data.shape[1] // num_bytes * num_elements, dtype=dtype)


# The ggml types that quantize writes, all in blocks of 32.
GGML_Q4_0, GGML_Q4_1, GGML_Q8_0 = 2, 3, 8


def quantize(weight: Tensor, ggml_type: int) -> Tensor:
    """Rounds rows to ggml blocks; a block's bytes depend on its 32 values alone.

    Q8_0 rounds as ggml does. Q4_0 and Q4_1 look for the scale and minimum of least squared error
    (csrc/cpu/quantize_kernel.h), 10 to 20 % less of it than ggml's rounding has.

    Args:
        weight: [N, K] float32 or bfloat16, K a multiple of 32, all finite.
        ggml_type: GGML_Q4_0, GGML_Q4_1 or GGML_Q8_0.

    Returns:
        uint8 [N, row_bytes], as dequantize reads them.
    """
    return ops.quantize(weight, ggml_type)


@torch.library.register_fake("pyengine::quantize")
def _(weight: Tensor, ggml_type: int) -> Tensor:
    num_elements, num_bytes = GGML_BLOCKS[ggml_type]
    return weight.new_empty(
        weight.shape[0], weight.shape[1] // num_elements * num_bytes, dtype=torch.uint8
    )
