"""Models of known shapes with random weights: as slow as the real ones, and nothing to download."""

from typing import Any

import torch
from torch import Tensor

from pyengine.config import EngineConfig
from pyengine.engine.devices import Device
from pyengine.engine.loading import LoadedModel
from pyengine.models import ModelConfig, load_model
from pyengine.text.tokenizer import Tokenizer, Vocabulary
from pyengine.weights.quantized import QuantizedTensor

_COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _COMMON
    | {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "llama-8b": _COMMON
    | {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "tiny": _COMMON
    | {
        "vocab_size": 300,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}


class _RandomTensors:
    """A checkpoint of the shape, drawn where the model will be."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._device = device
        self._shapes = tensor_shapes(config)

    def names(self) -> list[str]:
        return list(self._shapes)

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=dtype, device=self._device)
        return torch.randn(shape, dtype=dtype, device=self._device) * shape[1] ** -0.5

    def load_quantized(self, name: str) -> QuantizedTensor | None:
        return None


def tensor_shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama of this shape, but for biases, under Hugging Face's names."""
    query_size, kv_size = c.num_heads * c.head_size, c.num_kv_heads * c.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c.vocab_size, c.hidden_size),
        "model.norm.weight": (c.hidden_size,),
    }
    if not c.tie_word_embeddings:
        shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
    for i in range(c.num_layers):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (c.hidden_size,),
            f"{layer}.post_attention_layernorm.weight": (c.hidden_size,),
            f"{layer}.self_attn.q_proj.weight": (query_size, c.hidden_size),
            f"{layer}.self_attn.k_proj.weight": (kv_size, c.hidden_size),
            f"{layer}.self_attn.v_proj.weight": (kv_size, c.hidden_size),
            f"{layer}.self_attn.o_proj.weight": (c.hidden_size, query_size),
            f"{layer}.mlp.gate_proj.weight": (c.intermediate_size, c.hidden_size),
            f"{layer}.mlp.up_proj.weight": (c.intermediate_size, c.hidden_size),
            f"{layer}.mlp.down_proj.weight": (c.hidden_size, c.intermediate_size),
        }
    return shapes


def num_weight_bytes(config: ModelConfig, *, with_head: bool = True) -> int:
    """What a step reads of the weights, two bytes each: all but the rows of the embedding.

    Args:
        with_head: count the matrix that makes logits.
    """
    shapes = tensor_shapes(config)
    embedding = shapes.pop("model.embed_tokens.weight")
    shapes.pop("lm_head.weight", None)
    matrices = [shape for shape in shapes.values() if len(shape) == 2]
    if with_head:
        matrices.append(embedding)
    return 2 * sum(rows * columns for rows, columns in matrices)


def random_model(shape: str, device: Device, *, exact: bool = True) -> LoadedModel:
    """A model of one of SHAPES on the device, with a tokenizer whose every token is a letter."""
    config = ModelConfig.from_dict(SHAPES[shape])
    dtype = device.resolve_dtype(EngineConfig(model=shape, exact=exact), config)
    model = load_model(
        config,
        _RandomTensors(config, device.torch_device),
        dtype,
        config.max_position_embeddings,
        device=device.torch_device,
        exact=exact,
    )
    return LoadedModel(
        name=shape,
        model=model,
        config=config,
        dtype=dtype,
        kv_cache_dtype=dtype,
        max_model_len=config.max_position_embeddings,
        fingerprint="fp_random",
        tokenizer=_LetterTokenizer(config.vocab_size),
        chat_template=None,
        device=device,
    )


class _LetterTokenizer(Tokenizer):
    def __init__(self, vocab_size: int) -> None:
        super().__init__(
            Vocabulary(
                token_bytes=[bytes([97 + i % 26]) for i in range(vocab_size)],
                special_ids=frozenset(),
                bos_token_id=None,
                eos_token_ids=frozenset(),
                bos_token=None,
                eos_token=None,
                prefix_ids=[],
                suffix_ids=[],
                has_space_prefix=False,
                chat_template=None,
            )
        )

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        return [ord(letter) - 97 for letter in text]
