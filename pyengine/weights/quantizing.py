"""Quantizes a checkpoint's float weights while they are read."""

from typing import Literal

import torch

from pyengine.errors import ModelLoadError
from pyengine.ops import quantize
from pyengine.weights.checkpoint import Checkpoint
from pyengine.weights.ggml_types import TYPES_BY_NAME, GGMLType
from pyengine.weights.quantized import QuantizedTensor

_EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")


class QuantizingSource:
    """Presents the matrices of a float checkpoint as a GGUF file presents quantized ones.

    "int8" makes all of them Q8_0, 8.5 bits a weight. "int4" makes those of the layers Q4_1, 5 bits
    a weight; the embedding and the head, by which a quantized model loses most, stay at Q8_0. A
    matrix whose rows are no multiple of 32 long is left as it is, and so are norms and biases.
    """

    def __init__(self, checkpoint: Checkpoint, quantization: Literal["int8", "int4"]) -> None:
        self._checkpoint = checkpoint
        self._layers_type = TYPES_BY_NAME["Q8_0" if quantization == "int8" else "Q4_1"]

    def names(self) -> list[str]:
        return self._checkpoint.names()

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return self._checkpoint.load(name, dtype)

    def load_quantized(self, name: str) -> QuantizedTensor | None:
        """A matrix, quantized, or None if it is left as it is.

        Raises:
            ModelLoadError: there is no such tensor, or it holds a NaN or an infinity.
        """
        weight = self._checkpoint.load(name, torch.float32)
        type_ = self._type_of(name)
        if weight.dim() != 2 or weight.shape[1] % type_.block_values:
            return None
        try:
            return QuantizedTensor(quantize(weight, type_.id), type_)
        except RuntimeError as error:
            raise ModelLoadError(
                f"the tensor {name!r} can't be quantized: it holds a NaN or an infinity"
            ) from error

    def _type_of(self, name: str) -> GGMLType:
        return TYPES_BY_NAME["Q8_0"] if name in _EMBEDDINGS else self._layers_type
