"""Llama-architecture models in GGUF files, presented in Hugging Face's terms."""

from collections.abc import Iterator
from pathlib import Path

import torch

from pyengine.errors import ModelLoadError
from pyengine.ops import dequantize
from pyengine.weights.checkpoint import Checkpoint
from pyengine.weights.gguf_config import ROPE_FACTORS, to_hf_config
from pyengine.weights.gguf_file import GGUFFile, GGUFTensor
from pyengine.weights.quantized import QuantizedTensor

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFCheckpoint(Checkpoint):
    """A .gguf file of a Llama-architecture model.

    If the file carries factors for the rotary frequencies (Llama 3.1's long-context scaling),
    config["rope_freq_factors"] is the name of that tensor, float32 [rotary_dim / 2]: each inverse
    frequency is to be divided by its factor.
    """

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self.config = to_hf_config(self._file)
        self._tensors = {_hf_name(path, tensor): tensor for tensor in self._file.tensors.values()}
        self.generation_config = {
            key: self.config[key] for key in ("bos_token_id", "eos_token_id") if key in self.config
        }

    def names(self) -> list[str]:
        return list(self._tensors)

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        tensor = self._find(name)
        values = dequantize(self._rows(tensor), tensor.type.id, dtype)
        return self._in_order(name, values.view(tensor.shape))

    def load_quantized(self, name: str) -> QuantizedTensor | None:
        tensor = self._find(name)
        if not tensor.type.is_quantized or len(tensor.shape) != 2:
            return None
        return QuantizedTensor(self._in_order(name, self._rows(tensor)), tensor.type)

    @property
    def is_quantized(self) -> bool:
        return any(tensor.type.is_quantized for tensor in self._tensors.values())

    def _contents(self) -> Iterator[memoryview]:
        data = memoryview(self._file.data)
        for name in sorted(self._file.tensors):
            tensor = self._file.tensors[name]
            yield memoryview(f"{name} {tensor.type.name}".encode())
            yield data[tensor.start : tensor.start + tensor.num_bytes]

    def _find(self, name: str) -> GGUFTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelLoadError(f"{self._file.path}: there is no tensor {name}")
        return tensor

    def _rows(self, tensor: GGUFTensor) -> torch.Tensor:
        """uint8 [rows, row_bytes], in the file's memory."""
        data = torch.frombuffer(
            self._file.data, dtype=torch.uint8, count=tensor.num_bytes, offset=tensor.start
        )
        return data.view(tensor.num_values // tensor.shape[-1], -1)

    def _in_order(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        if ".q_proj." in name:
            return _unpermute(rows, self.config["num_attention_heads"])
        if ".k_proj." in name:
            return _unpermute(rows, self.config["num_key_value_heads"])
        return rows


def _hf_name(path: Path, tensor: GGUFTensor) -> str:
    if tensor.name == ROPE_FACTORS:
        return ROPE_FACTORS
    match tensor.name.split("."):
        case [part, ("weight" | "bias") as kind] if part in _NAMES:
            return f"{_NAMES[part]}.{kind}"
        case ["blk", layer, part, ("weight" | "bias") as kind] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    raise ModelLoadError(
        f"{path}: the tensor {tensor.name} has no place in a Llama-architecture model "
        "(mixtures of experts aren't supported)"
    )


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of query and key projections, back in the order for half-split rotation.

    GGUF files keep the two rows that are rotated together next to each other; Hugging Face
    keeps the first of all pairs of a head, then the second of all.

    Args:
        weight: [num_heads * head_dim, N] (rows of values or of blocks) or, for a bias,
            [num_heads * head_dim].
    """
    pairs = weight.view(num_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
