"""The Llama family: Llama, Mistral, SmolLM and others of the same architecture."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pyengine import ops
from pyengine.models.config import ModelConfig
from pyengine.models.decoder import Decoder, FusedDecoder, LayerwiseDecoder
from pyengine.models.layers import (
    Attention,
    AttentionInputs,
    DecoderLayer,
    GatedMLP,
    KVCache,
    Linear,
    RMSNorm,
)
from pyengine.models.packed_weights import pack_weight, pack_weights
from pyengine.models.rope import rope_table
from pyengine.models.weight_reader import WeightReader
from pyengine.weights.quantized import QuantizedTensor


class LlamaForCausalLM:
    """A decoder-only transformer (Touvron et al. 2023).

    Args:
        config: its shape.
        weights: where its tensors come from, under Hugging Face's names.
        max_model_len: positions to prepare rotary embeddings for.
    """

    def __init__(self, config: ModelConfig, weights: WeightReader, max_model_len: int) -> None:
        self.config = config
        hidden, vocab = config.hidden_size, config.vocab_size
        divisors = None
        if config.rope_divisors_name is not None:
            divisors = weights.read(
                config.rope_divisors_name, config.head_size // 2, dtype=torch.float32
            ).cpu()
        self._cos_sin = rope_table(
            config.head_size, max_model_len, config.rope_theta, config.rope_scaling, divisors
        ).to(weights.device)
        embedding = weights.read_weight("model.embed_tokens.weight", vocab, hidden)
        prefixes = [f"model.layers.{i}" for i in range(config.num_layers)]
        norms = [self._read_norm(weights, f"{prefix}.input_layernorm") for prefix in prefixes]
        norms.append(self._read_norm(weights, "model.norm"))
        layers = [
            self._read_layer(weights, prefix, next_layernorm)
            for prefix, next_layernorm in zip(prefixes, norms[1:], strict=True)
        ]
        self.layerwise = LayerwiseDecoder(norms[0], layers)
        # A GPU has what the operators of a step are replaced with there: captured graphs.
        is_on_cpu = weights.device.type == "cpu"
        self.decoder: Decoder = FusedDecoder(self.layerwise) if is_on_cpu else self.layerwise
        # A tied head is not always declared, but then its tensor is absent.
        is_tied = config.tie_word_embeddings or "lm_head.weight" not in weights
        head = pack_weight(
            embedding if is_tied else weights.read_weight("lm_head.weight", vocab, hidden),
            exact=weights.exact,
        )
        self._lm_head = Linear([head])
        self._embed: Callable[[Tensor], Tensor]
        if isinstance(embedding, QuantizedTensor) or is_tied:
            rows = head if is_tied else pack_weight(embedding)
            self._embed = partial(rows.embed, dtype=weights.dtype)
        else:
            self._embed = partial(ops.embedding, weight=embedding)

    def embed(self, token_ids: Tensor) -> Tensor:
        """What the layers start from: int64 [T] -> [T, hidden]."""
        return self._embed(token_ids)

    def forward(
        self,
        embeddings: Tensor,
        inputs: AttentionInputs,
        cache: KVCache,
        num_logits: list[int] | None = None,
    ) -> Tensor:
        """Computes the T tokens of a step and writes their K/V.

        Args:
            embeddings: [T, hidden], of the tokens fed; overwritten.
            num_logits: of how many of its last tokens each sequence wants logits; None: of all.

        Returns:
            The hidden states after the last norm, of those tokens in order
            [sum of num_logits, hidden], or of all [T, hidden].
        """
        return self.decoder(embeddings, inputs, cache, num_logits)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits after rows of hidden states: [R, hidden] -> float32 [R, vocab]."""
        return self._lm_head(hidden, float32_out=True)

    def _read_layer(
        self, weights: WeightReader, prefix: str, next_layernorm: RMSNorm
    ) -> DecoderLayer:
        c = self.config
        query_size, kv_size = c.num_heads * c.head_size, c.num_kv_heads * c.head_size
        attention = Attention(
            qkv_proj=_read_linear(
                weights,
                f"{prefix}.self_attn",
                {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size},
                c.hidden_size,
                c.attention_bias,
            ),
            o_proj=_read_linear(
                weights,
                f"{prefix}.self_attn",
                {"o_proj": c.hidden_size},
                query_size,
                c.attention_bias,
            ),
            cos_sin=self._cos_sin,
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_size=c.head_size,
            sliding_window=c.sliding_window,
        )
        mlp = GatedMLP(
            gate_up_proj=_read_linear(
                weights,
                f"{prefix}.mlp",
                {"gate_proj": c.intermediate_size, "up_proj": c.intermediate_size},
                c.hidden_size,
                c.mlp_bias,
            ),
            down_proj=_read_linear(
                weights,
                f"{prefix}.mlp",
                {"down_proj": c.hidden_size},
                c.intermediate_size,
                c.mlp_bias,
            ),
        )
        return DecoderLayer(
            attention=attention,
            post_attention_layernorm=self._read_norm(weights, f"{prefix}.post_attention_layernorm"),
            mlp=mlp,
            next_layernorm=next_layernorm,
        )

    def _read_norm(self, weights: WeightReader, name: str) -> RMSNorm:
        weight = weights.read(f"{name}.weight", self.config.hidden_size)
        return RMSNorm(weight, self.config.rms_norm_eps)


def _read_linear(
    weights: WeightReader, prefix: str, outputs: dict[str, int], num_inputs: int, has_bias: bool
) -> Linear:
    """One layer for several projections of the same input, their outputs side by side."""
    parts = [
        weights.read_weight(f"{prefix}.{name}.weight", n, num_inputs) for name, n in outputs.items()
    ]
    bias = None
    if has_bias:
        bias = torch.cat([weights.read(f"{prefix}.{name}.bias", n) for name, n in outputs.items()])
    return Linear(pack_weights(parts, exact=weights.exact), bias)
