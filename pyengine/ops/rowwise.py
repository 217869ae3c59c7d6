"""Operators that work on each row alone: norms, activation, and the rows of a matrix by number."""

import torch
from torch import Tensor

from pyengine.ops.library import ops


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight for x [T, N], weight [N], in float32 -> [T, N]."""
    return ops.rms_norm(x, weight, eps)


@torch.library.register_fake("pyengine::rms_norm")
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


def fused_add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """residual += x [T, N], then x = rms_norm(residual, weight, eps), both in place."""
    ops.fused_add_rms_norm_(x, residual, weight, eps)


@torch.library.register_fake("pyengine::fused_add_rms_norm_")
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    return None


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[:, :N]) * x[:, N:] for x [T, 2N], float32 or bfloat16 -> [T, N]."""
    return ops.silu_and_mul(x)


@torch.library.register_fake("pyengine::silu_and_mul")
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    """The rows token_ids (int64 [T], in [0, V)) of weight [V, N] -> [T, N]."""
    return ops.embedding(token_ids, weight)


@torch.library.register_fake("pyengine::embedding")
def _(token_ids: Tensor, weight: Tensor) -> Tensor:
    return weight.new_empty(token_ids.shape[0], weight.shape[1])


def gather_logits(
    hidden: Tensor, query_start_loc: Tensor, num_logits: Tensor, num_rows: int
) -> Tensor:
    """The rows that need logits: the last num_logits[s] of each sequence's query, in order.

    Args:
        hidden: [T, N], float32 or bfloat16.
        query_start_loc: int32 [S + 1], where each sequence's rows begin.
        num_logits: int32 [S], each from 0 to the length of the sequence's query.
        num_rows: the sum of num_logits.

    Returns:
        [num_rows, N].
    """
    return ops.gather_logits(hidden, query_start_loc, num_logits, num_rows)


@torch.library.register_fake("pyengine::gather_logits")
def _(hidden: Tensor, query_start_loc: Tensor, num_logits: Tensor, num_rows: int) -> Tensor:
    return hidden.new_empty(num_rows, hidden.shape[1])
