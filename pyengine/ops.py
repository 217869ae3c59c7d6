"""The typed Python face of the operators, and their fake (shape-only) kernels.

Letters in shapes are those of csrc/ops.h: T tokens in the flat batch, S sequences, H query heads,
K key/value heads, D head size, B blocks in the cache, P block size, V vocabulary, R logits rows.
Bad arguments raise RuntimeError with a message that names the argument.
"""

import torch
from torch import Tensor

from pyengine._loader import load_ops

load_ops()
_ops = torch.ops.pyengine


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[:, :N]) * x[:, N:] for x [T, 2N], float32 or bfloat16 -> [T, N]."""
    return _ops.silu_and_mul(x)


@torch.library.register_fake("pyengine::silu_and_mul")
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)
