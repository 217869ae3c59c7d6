"""Sequences for attention, and their layout in a paged cache, chosen apart from each other."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyengine import ops
from tests.ops import reference


@dataclass(frozen=True)
class Sequence:
    query: Tensor  # [num_tokens, H, D]
    key: Tensor  # [num_tokens, K, D]
    value: Tensor  # [num_tokens, K, D]


@dataclass(frozen=True)
class Chunk:
    """The tokens of a sequence, from `begin` to `end`, that one call computes."""

    sequence: Sequence
    begin: int
    end: int


def make_sequence(
    num_tokens: int,
    *,
    heads: int = 3,
    kv_heads: int = 1,
    head_size: int = 64,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sequence:
    generator = torch.Generator().manual_seed(seed)
    sizes = [(num_tokens, n, head_size) for n in (heads, kv_heads, kv_heads)]
    return Sequence(*(torch.randn(size, generator=generator).to(dtype) for size in sizes))


def lay_out(
    chunks: list[Chunk],
    block_size: int,
    *,
    sliding_window: int = 0,
    seed: int = 0,
    int8_cache: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tensor arguments of paged_attention for these chunks.

    Blocks are dealt out at random. Every slot that no query may see holds NaN, and block tables
    hold an impossible id there: what lies beyond a chunk's end, and what the window has left.
    An int8 cache holds the keys and values quantized.
    """
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [-(-chunk.end // block_size) for chunk in chunks]
    total = sum(num_blocks) + 2
    _, kv_heads, head_size = chunks[0].sequence.key.shape
    dtype = chunks[0].sequence.key.dtype
    to_cache = reference.quantize_rows if int8_cache else torch.clone
    unseen = torch.full((total, kv_heads, block_size, head_size), float("nan"), dtype=dtype)
    key_cache, value_cache = to_cache(unseen), to_cache(unseen)
    free = torch.randperm(total, generator=generator).tolist()
    block_tables = torch.full((len(chunks), max(num_blocks, default=0)), -7, dtype=torch.int32)
    for s, chunk in enumerate(chunks):
        first = max(0, chunk.begin - sliding_window + 1) if sliding_window else 0
        if chunk.begin == chunk.end:
            first = chunk.end
        positions = torch.arange(first, chunk.end)
        for index in (positions // block_size).unique().tolist():
            block_tables[s, index] = free.pop()
        blocks, offsets = block_tables[s, positions // block_size].long(), positions % block_size
        key_cache[blocks, :, offsets] = to_cache(chunk.sequence.key[first : chunk.end])
        value_cache[blocks, :, offsets] = to_cache(chunk.sequence.value[first : chunk.end])
    lengths = [0] + [chunk.end - chunk.begin for chunk in chunks]
    return (
        torch.cat([chunk.sequence.query[chunk.begin : chunk.end] for chunk in chunks]),
        key_cache,
        value_cache,
        block_tables,
        torch.tensor(lengths).cumsum(0).int(),
        torch.tensor([chunk.end for chunk in chunks], dtype=torch.int32),
    )


def attend(
    chunks: list[Chunk],
    block_size: int = 16,
    *,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    seed: int = 0,
    int8_cache: bool = False,
    op: Callable[..., Tensor] = ops.paged_attention,
) -> list[Tensor]:
    """The op's result for each chunk, [tokens, H, D]."""
    args = lay_out(
        chunks, block_size, sliding_window=sliding_window, seed=seed, int8_cache=int8_cache
    )
    scale = chunks[0].sequence.query.shape[2] ** -0.5
    out = op(*args, scale, sliding_window, soft_cap)
    return list(out.split([chunk.end - chunk.begin for chunk in chunks]))
