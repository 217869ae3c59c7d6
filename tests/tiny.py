"""A tiny seeded model with a byte tokenizer: real kernels and scheduling, in milliseconds."""

import functools
import zlib
from typing import Literal

import torch
from torch import Tensor

from benchmarks.random_model import tensor_shapes
from pyengine.engine.loading import LoadedModel
from pyengine.models import ModelConfig, load_model
from pyengine.models.weight_reader import TensorSource
from pyengine.ops import quantize
from pyengine.text.chat_template import ChatTemplate
from pyengine.text.tokenizer import Tokenizer, Vocabulary
from pyengine.weights.ggml_types import TYPES_BY_NAME
from pyengine.weights.quantized import QuantizedTensor
from pyengine.weights.quantizing import QuantizingSource

Weights = Literal["float", "ggml", "int8", "int4"]
VOCAB_SIZE = 272
EOS_TOKEN_ID = 256
BOS_TOKEN_ID = 257

CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "dtype": "float32",
}


class RandomWeights:
    """A checkpoint whose tensors are drawn from their names; all that a Llama may ask for.

    Args:
        is_quantized: offer the matrices in ggml types, of which a layer's neighbours have several.
    """

    def __init__(self, config: ModelConfig, seed: int = 0, *, is_quantized: bool = False) -> None:
        c = config
        query_size, kv_size = c.num_heads * c.head_size, c.num_kv_heads * c.head_size
        self._seed = seed
        self.is_quantized = is_quantized
        self._shapes = tensor_shapes(c)
        for i in range(c.num_layers):
            layer = f"model.layers.{i}"
            if c.attention_bias:
                sizes = {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size}
                for projection, size in (sizes | {"o_proj": c.hidden_size}).items():
                    self._shapes[f"{layer}.self_attn.{projection}.bias"] = (size,)

    def names(self) -> list[str]:
        return list(self._shapes)

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        shape = self._shapes[name]
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + self._seed)
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            return (1 + 0.1 * values).to(dtype)
        return (values * 2 / shape[1] ** 0.5).to(dtype)

    def load_quantized(self, name: str) -> QuantizedTensor | None:
        if not self.is_quantized:
            return None
        types = ["Q4_1", "Q8_0"] if "v_proj" in name or "up_proj" in name else ["Q4_0", "Q4_1"]
        type_ = TYPES_BY_NAME[types[zlib.crc32(name.encode()) % 2]]
        return QuantizedTensor(quantize(self.load(name, torch.float32), type_.id), type_)


class ByteTokenizer(Tokenizer):
    """Token ids 0 to 255 are bytes, 256 ends a sequence, 257 begins one, the rest are unused.

    Args:
        eos_token_ids: the tokens that end an answer.
        letters: decode the bytes as letters from a to z, so that any tokens make text.
    """

    def __init__(self, eos_token_ids: frozenset[int], letters: bool = False) -> None:
        values = [97 + i % 26 if letters else i for i in range(256)]
        names = [f"<{token_id}>".encode() for token_id in range(256, VOCAB_SIZE)]
        super().__init__(
            Vocabulary(
                token_bytes=[bytes([value]) for value in values] + names,
                special_ids=frozenset(range(256, VOCAB_SIZE)),
                bos_token_id=BOS_TOKEN_ID,
                eos_token_ids=eos_token_ids,
                bos_token="<257>",
                eos_token="<256>",
                prefix_ids=[],
                suffix_ids=[],
                has_space_prefix=False,
                chat_template=CHAT_TEMPLATE,
            )
        )

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        return list(text.encode())


@functools.cache
def tiny_model(
    dtype: torch.dtype = torch.float32,
    kv_cache_dtype: torch.dtype | None = None,
    eos_token_ids: frozenset[int] = frozenset({EOS_TOKEN_ID}),
    letters: bool = False,
    weights: Weights = "float",
) -> LoadedModel:
    """The model, loaded, with a ByteTokenizer of these options.

    Args:
        weights: "ggml" offers matrices of several ggml types, as a GGUF file does; "int8" and
            "int4" quantize the float ones at load.
    """
    config = ModelConfig.from_dict(CONFIG)
    tokenizer = ByteTokenizer(eos_token_ids, letters)
    source: TensorSource = RandomWeights(config, is_quantized=weights == "ggml")
    if weights == "int8" or weights == "int4":
        source = QuantizingSource(source, weights)
    return LoadedModel(
        name="tiny",
        model=load_model(config, source, dtype, config.max_position_embeddings),
        config=config,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype or dtype,
        max_model_len=config.max_position_embeddings,
        fingerprint="fp_tiny",
        tokenizer=tokenizer,
        chat_template=ChatTemplate(CHAT_TEMPLATE, bos_token="<257>", eos_token="<256>"),
    )
