"""The layers of a decoder: one by one as the operators spell them out, or all in one call."""

import weakref
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pyengine import ops
from pyengine.models.layers import AttentionInputs, DecoderLayer, KVCache, RMSNorm


class Decoder(Protocol):
    """What computes the layers."""

    def __call__(
        self,
        residual: Tensor,
        inputs: AttentionInputs,
        cache: KVCache,
        num_logits: list[int] | None = None,
    ) -> Tensor:
        """The hidden states after the last norm; writes the K/V of the T tokens.

        Args:
            residual: [T, hidden], the embeddings; overwritten.
            num_logits: of how many of its last tokens each sequence wants them; None: of all.

        Returns:
            [sum of num_logits, hidden], or [T, hidden].
        """


@dataclass(frozen=True)
class LayerwiseDecoder:
    """The layers one by one, operator by operator."""

    first_layernorm: RMSNorm
    layers: list[DecoderLayer]

    def __call__(
        self,
        residual: Tensor,
        inputs: AttentionInputs,
        cache: KVCache,
        num_logits: list[int] | None = None,
    ) -> Tensor:
        x = self.first_layernorm(residual)
        for index, layer in enumerate(self.layers):
            x = layer(x, residual, inputs, cache.layer(index))
        if num_logits is None:
            return x
        counts = torch.tensor(num_logits, dtype=torch.int32, device=x.device)
        return ops.gather_logits(x, inputs.query_start_loc, counts, sum(num_logits))


class FusedDecoder:
    """The same layers in one call, with the same bits: it spares the way through the framework for
    each of the hundreds of operators of a step, which takes a small model more than a millisecond.
    Of the last layer it computes no more than the wanted rows need.
    """

    def __init__(self, decoder: LayerwiseDecoder) -> None:
        first_layernorm, layers = decoder.first_layernorm, decoder.layers
        attention = layers[0].attention
        norms = [first_layernorm]
        for layer in layers:
            norms += [layer.post_attention_layernorm, layer.next_layernorm]
        self._number = ops.decoder_create(
            attention.cos_sin,
            [norm.weight for norm in norms],
            attention.num_heads,
            attention.num_kv_heads,
            attention.head_size,
            layers[0].mlp.down_proj.num_inputs,
            attention.scale,
            attention.sliding_window,
            first_layernorm.eps,
        )
        weakref.finalize(self, ops.decoder_destroy, self._number)
        for layer in layers:
            for projection in (
                layer.attention.qkv_proj,
                layer.attention.o_proj,
                layer.mlp.gate_up_proj,
                layer.mlp.down_proj,
            ):
                ops.decoder_add_projection(
                    self._number,
                    [weight.packed for weight in projection.weights],
                    [weight.num_outputs for weight in projection.weights],
                    [weight.ggml_type for weight in projection.weights],
                    projection.bias,
                )

    def __call__(
        self,
        residual: Tensor,
        inputs: AttentionInputs,
        cache: KVCache,
        num_logits: list[int] | None = None,
    ) -> Tensor:
        counts, num_rows = None, residual.shape[0]
        if num_logits is not None and sum(num_logits) < num_rows:
            counts, num_rows = torch.tensor(num_logits, dtype=torch.int32), sum(num_logits)
        return ops.decoder_run(
            self._number,
            residual,
            inputs.positions,
            inputs.slot_mapping,
            inputs.block_tables,
            inputs.query_start_loc,
            inputs.seq_lens,
            cache.keys,
            cache.values,
            counts,
            num_rows,
        )
