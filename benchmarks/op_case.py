"""What `bench_ops` times: a call of an operator, with what it must move and compute."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model; by default SmolLM2-135M's."""

    hidden_size: int = 576
    intermediate_size: int = 1536
    num_heads: int = 9
    num_kv_heads: int = 3
    head_size: int = 64
    vocab_size: int = 49152


@dataclass(frozen=True)
class Case:
    """One operator at one shape.

    Args:
        calls: the operator on operands of its own each, called in turn. Weights and caches have so
            many copies that a call finds its own in memory and not in a cache of the processor, as
            it does in a step of the whole model. Activations are where the last operator left them.
        num_bytes: that one call has to read and write, everything once.
        num_flops: multiplications and additions of one call, in products alone.
        arithmetic: what they are done in: "bfloat16", "float32" or "int8".
    """

    op: str
    shape: str
    calls: list[Callable[[], object]]
    num_bytes: int
    num_flops: int = 0
    arithmetic: str = "bfloat16"


def copies(num_bytes: int, cold_bytes: int) -> range:
    """Counts the operands of `num_bytes` that together have at least `cold_bytes`."""
    return range(max(1, -(-cold_bytes // num_bytes)))


def name(dtype: torch.dtype) -> str:
    """Without the "torch." before it."""
    return str(dtype).removeprefix("torch.")
