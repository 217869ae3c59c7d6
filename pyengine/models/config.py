"""The shape of a model, from the terms of Hugging Face's config.json."""

from dataclasses import dataclass
from typing import Any

import torch

from pyengine.errors import ModelLoadError
from pyengine.models.fields import flag, mapping, positive_int, positive_number

MAX_HEAD_SIZE = 256  # of the attention kernels

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    rope_divisors_name: str | None  # the tensor that divides the frequencies (GGUF)
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    sliding_window: int  # 0: none
    checkpoint_dtype: torch.dtype

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "ModelConfig":
        """Reads config.json.

        Raises:
            ModelLoadError: a value is missing, impossible, or asks for what isn't supported.
        """
        architectures = config.get("architectures") or ["(none)"]
        if not isinstance(architectures, list) or not isinstance(architectures[0], str):
            raise ModelLoadError(
                f"config.json: architectures must be a list of names, got {architectures!r:.100}"
            )
        num_heads = positive_int(config, "num_attention_heads")
        num_kv_heads = positive_int(config, "num_key_value_heads", num_heads)
        hidden_size = positive_int(config, "hidden_size")
        if num_heads % num_kv_heads:
            raise ModelLoadError(
                f"config.json: num_attention_heads ({num_heads}) must be a multiple of "
                f"num_key_value_heads ({num_kv_heads})"
            )
        head_size = positive_int(config, "head_dim", hidden_size // num_heads)
        if head_size > MAX_HEAD_SIZE or head_size % 2:
            raise ModelLoadError(
                f"config.json: heads of {head_size} values are not supported, only even sizes up "
                f"to {MAX_HEAD_SIZE}"
            )
        activation = config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise ModelLoadError(
                f"config.json: hidden_act {activation!r} is not supported, only 'silu' is"
            )
        # Newer files keep all about the rotation in rope_parameters.
        rope = mapping(config, "rope_parameters")
        scaling = mapping(config, "rope_scaling") or rope
        theta = positive_number(rope, "rope_theta", 10000.0)
        rope_type = scaling.get("rope_type", scaling.get("type", "default"))
        if config.get("partial_rotary_factor", 1.0) != 1.0:
            raise ModelLoadError("config.json: partial_rotary_factor is not supported")
        return cls(
            architecture=architectures[0],
            vocab_size=positive_int(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=positive_int(config, "intermediate_size"),
            num_layers=positive_int(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            rms_norm_eps=positive_number(config, "rms_norm_eps", 1e-6),
            rope_theta=positive_number(config, "rope_theta", theta),
            rope_scaling=None if rope_type == "default" else {**scaling, "rope_type": rope_type},
            rope_divisors_name=config.get("rope_freq_factors"),
            max_position_embeddings=positive_int(config, "max_position_embeddings", 2048),
            tie_word_embeddings=flag(config, "tie_word_embeddings"),
            attention_bias=flag(config, "attention_bias"),
            mlp_bias=flag(config, "mlp_bias"),
            sliding_window=positive_int(config, "sliding_window")
            if config.get("sliding_window")
            else 0,
            checkpoint_dtype=_checkpoint_dtype(config),
        )

    def resolve_dtype(self, dtype: str) -> torch.dtype:
        """The dtype to compute in: the named one, or for "auto" float32 if the checkpoint is."""
        if dtype != "auto":
            return _DTYPES[dtype]
        return torch.float32 if self.checkpoint_dtype is torch.float32 else torch.bfloat16

    def kv_bytes_per_token(self, cache_dtype: torch.dtype) -> int:
        """Bytes that a token's keys and values take in all layers."""
        row_bytes = kv_row_size(self.head_size, cache_dtype) * cache_dtype.itemsize
        return 2 * self.num_layers * self.num_kv_heads * row_bytes


def kv_row_size(head_size: int, cache_dtype: torch.dtype) -> int:
    """Elements of a token's keys or values of one head in the cache: a row of int8 ends in the four
    bytes of its scale."""
    return head_size + 4 if cache_dtype is torch.int8 else head_size


def _checkpoint_dtype(config: dict[str, Any]) -> torch.dtype:
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return torch.float32 if name == "float32" else torch.bfloat16
