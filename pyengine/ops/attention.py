"""Rotary positions, the KV cache, and attention over it."""

import torch
from torch import Tensor

from pyengine.ops.library import ops


def rope_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """Rotates query [T, H, D] in place; writes rotated key and value [T, K, D] into the cache.

    The rotation is the half-split one (GPT-NeoX, Hugging Face) of the first `rotary_dim` elements
    of each head. Token t goes to slot slot_mapping[t] = block * P + offset; slot -1 is not written.

    Args:
        query, key, value: contiguous in their last two dimensions, any stride between tokens.
        positions: [T] int64, in [0, max_position).
        cos_sin: [max_position, rotary_dim] float32; a row is [cos | sin], each rotary_dim / 2.
        key_cache, value_cache: [B, K, P, D] of the query's dtype, or int8 [B, K, P, D + 4]: whole
            numbers from -127 to 127, then in four bytes the float32 that they are times of, the
            row's largest magnitude / 127. Blocks may lie apart. Mutated.
        slot_mapping: [T] int64, in [-1, B * P).
    """
    ops.rope_and_cache(query, key, value, positions, cos_sin, key_cache, value_cache, slot_mapping)


@torch.library.register_fake("pyengine::rope_and_cache")
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    return None


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Causal attention of query [T, H, D] over cached keys and values -> [T, H, D], contiguous.

    One call serves any mix of prefill chunks, decodes and resumed sequences. Query i of sequence s
    stands at position p = seq_lens[s] - query_len + i and sees keys (p - sliding_window, p], or
    [0, p] if sliding_window is 0. Query head h reads key/value head h // (H / K). A row's result
    depends, to the bit, on its own query and context only: not on the block size, the physical
    blocks, its batch mates, the chunking or the thread count.

    Args:
        query: contiguous in its last two dimensions, any stride between tokens; D up to 256.
        key_cache, value_cache: [B, K, P, D] of the query's dtype, or int8 [B, K, P, D + 4] as
            rope_and_cache writes it.
        block_tables: [S, max_blocks] int32; entries that no query sees are not read.
        query_start_loc: [S + 1] int32, offsets of the sequences in the flat batch.
        seq_lens: [S] int32, context lengths with this step's tokens.
        scale: factor of the scores q . k.
        soft_cap: c > 0 turns a scaled score x into c * tanh(x / c); 0 leaves it.
    """
    return ops.paged_attention(
        query,
        key_cache,
        value_cache,
        block_tables,
        query_start_loc,
        seq_lens,
        scale,
        sliding_window,
        soft_cap,
    )


@torch.library.register_fake("pyengine::paged_attention")
def _(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int,
    soft_cap: float,
) -> Tensor:
    return query.new_empty(query.shape)
