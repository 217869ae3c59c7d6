"""A model's configuration and tensors, in Hugging Face's terms whatever the file format."""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyengine.errors import ModelLoadError

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer

    from pyengine.weights.quantized import QuantizedTensor


class Checkpoint(abc.ABC):
    """The files of one model, opened and checked but not read: tensors are mapped into memory.

    Attributes:
        config: what Hugging Face keeps in config.json.
        generation_config: what it keeps in generation_config.json; empty if there is none.
    """

    config: dict[str, Any]
    generation_config: dict[str, Any]

    @abc.abstractmethod
    def names(self) -> list[str]:
        """The tensors' names, as in a Hugging Face checkpoint."""

    @abc.abstractmethod
    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """One tensor, dequantized if need be, as contiguous memory that the caller owns.

        Args:
            name: one of names().
            dtype: float32 or bfloat16.

        Raises:
            ModelLoadError: there is no such tensor, or its type isn't supported.
        """

    def load_quantized(self, name: str) -> QuantizedTensor | None:
        """A matrix as it is quantized in the file, or None if it isn't. Its data may be the file's
        own memory.

        Raises:
            ModelLoadError: there is no such tensor.
        """
        return None

    @property
    def is_quantized(self) -> bool:
        """Whether load_quantized has anything to give."""
        return False

    def digest(self) -> str:
        """SHA-256 of what a model's numbers depend on: its configuration and its tensors, wherever
        the files lie. Reads them whole, so about a second a gigabyte."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for content in self._contents():
            digest.update(content)
        return digest.hexdigest()

    @abc.abstractmethod
    def _contents(self) -> Iterator[Buffer]:
        """The bytes of the tensors, in an order that depends on the checkpoint alone."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a Hugging Face folder or a .gguf file.

    Raises:
        ModelLoadError: the files are missing, broken, or of a kind that isn't supported.
    """
    # Here, because these import PyTorch, which `pyengine pull` has no need of.
    if path.is_file():
        from pyengine.weights.gguf import GGUFCheckpoint

        return GGUFCheckpoint(path)
    if path.is_dir():
        from pyengine.weights.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    raise ModelLoadError(f"{path}: no such file or folder")
