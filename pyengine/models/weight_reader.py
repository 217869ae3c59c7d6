"""Reads a model's tensors from a checkpoint, and checks that they are what the model expects."""

from types import TracebackType
from typing import Protocol, Self

import torch
from torch import Tensor
from tqdm import tqdm

from pyengine.config import Quantization
from pyengine.errors import ModelLoadError
from pyengine.weights.quantized import QuantizedTensor


class TensorSource(Protocol):
    """What a checkpoint offers here."""

    def names(self) -> list[str]: ...

    def load(self, name: str, dtype: torch.dtype) -> Tensor: ...

    def load_quantized(self, name: str) -> QuantizedTensor | None: ...


class WeightReader:
    """Tensors by name, each read once, with a progress bar. A context manager.

    Args:
        source: the checkpoint.
        dtype: of the tensors that it returns.
        device: where it puts them.
        exact: whether what multiplies with them must do so row by row as if alone.
        quantization: whether read_weight takes quantized ones: unless it is "none".
        show_progress: draw the bar, on standard error and if that is a terminal.
    """

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        *,
        device: torch.device,
        exact: bool,
        quantization: Quantization,
        show_progress: bool,
    ) -> None:
        self._source = source
        self.dtype = dtype
        self.device = device
        self.exact = exact
        self._quantization = quantization
        self._names = set(source.names())
        self._bar = tqdm(
            total=len(self._names),
            desc="Loading weights",
            unit="tensor",
            disable=None if show_progress else True,
            leave=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, of exactly this shape, in the reader's dtype unless another is asked for.

        Raises:
            ModelLoadError: it is missing, or its shape isn't that which config.json implies.
        """
        self._check_exists(name)
        tensor = self._source.load(name, dtype or self.dtype)
        self._check_shape(name, tensor.shape, shape)
        return tensor.to(self.device)

    def read_weight(self, name: str, num_outputs: int, num_inputs: int) -> Tensor | QuantizedTensor:
        """A matrix [num_outputs, num_inputs] of a linear layer or an embedding: quantized if the
        source has it so and `quantization` isn't "none", else as read() returns it.

        Raises:
            ModelLoadError: as read().
        """
        self._check_exists(name)
        if self._quantization != "none":
            quantized = self._source.load_quantized(name)
            if quantized is not None:
                self._check_shape(name, quantized.shape, (num_outputs, num_inputs))
                return quantized
        return self.read(name, num_outputs, num_inputs)

    def _check_exists(self, name: str) -> None:
        if name not in self._names:
            raise ModelLoadError(f"the checkpoint lacks the tensor {name!r}")

    def _check_shape(self, name: str, shape: torch.Size, expected: tuple[int, ...]) -> None:
        if shape != expected:
            raise ModelLoadError(
                f"the tensor {name!r} has shape {list(shape)}, but the model's "
                f"configuration implies {list(expected)}"
            )
        self._bar.update()
