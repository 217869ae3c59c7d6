"""All layers of a decoder in one call."""

import torch
from torch import Tensor

from pyengine.ops.library import ops


def decoder_create(
    cos_sin: Tensor,
    norms: list[Tensor],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    intermediate_size: int,
    scale: float,
    sliding_window: int,
    eps: float,
) -> int:
    """Begins a Llama-like decoder, all of whose layers run in one call.

    Args:
        cos_sin, scale, sliding_window: as for rope_and_cache and paged_attention.
        norms: the weights [hidden] of the norms in the order of use: two a layer, and the last.

    Returns:
        The number that names it, until decoder_destroy.
    """
    return ops.decoder_create(
        cos_sin,
        norms,
        num_heads,
        num_kv_heads,
        head_size,
        intermediate_size,
        scale,
        sliding_window,
        eps,
    )


@torch.library.register_fake("pyengine::decoder_create")
def _(
    cos_sin: Tensor,
    norms: list[Tensor],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    intermediate_size: int,
    scale: float,
    sliding_window: int,
    eps: float,
) -> int:
    return 0


NOT_QUANTIZED = -1  # the type of a weight through pack_linear_weight, among ggml types


def decoder_add_projection(
    decoder: int,
    weights: list[Tensor],
    num_outputs: list[int],
    ggml_types: list[int],
    bias: Tensor | None,
) -> None:
    """Gives a decoder its next linear layer: of each layer q|k|v, output, gate|up, down.

    Args:
        weights: through pack_linear_weight or pack_quantized_weight, their outputs side by side.
        num_outputs: of each weight.
        ggml_types: of each weight, or NOT_QUANTIZED.
        bias: [sum of num_outputs], or None.
    """
    ops.decoder_add_projection(decoder, weights, num_outputs, ggml_types, bias)


@torch.library.register_fake("pyengine::decoder_add_projection")
def _(
    decoder: int,
    weights: list[Tensor],
    num_outputs: list[int],
    ggml_types: list[int],
    bias: Tensor | None,
) -> None:
    return None


def decoder_run(
    decoder: int,
    residual: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_logits: Tensor | None,
    num_rows: int,
) -> Tensor:
    """All layers, and the norm after them. The same bits as by the single operators.

    Args:
        residual: [T, hidden], the embeddings; overwritten.
        positions, slot_mapping, block_tables, query_start_loc, seq_lens: as for rope_and_cache
            and paged_attention.
        key_cache, value_cache: [B, layers, K, P, D], mutated.
        num_logits: int32 [S], as for gather_logits, or None for the rows of all T tokens.
        num_rows: the sum of num_logits, or T.

    Returns:
        [num_rows, hidden].
    """
    return ops.decoder_run(
        decoder,
        residual,
        positions,
        slot_mapping,
        block_tables,
        query_start_loc,
        seq_lens,
        key_cache,
        value_cache,
        num_logits,
        num_rows,
    )


@torch.library.register_fake("pyengine::decoder_run")
def _(
    decoder: int,
    residual: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_logits: Tensor | None,
    num_rows: int,
) -> Tensor:
    return residual.new_empty(num_rows, residual.shape[1])


def decoder_destroy(decoder: int) -> None:
    """Lets go of a decoder's weights."""
    ops.decoder_destroy(decoder)


@torch.library.register_fake("pyengine::decoder_destroy")
def _(decoder: int) -> None:
    return None
