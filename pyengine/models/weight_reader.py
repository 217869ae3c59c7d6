"""Reads a model's tensors from a checkpoint, and checks that they are what the model expects."""

from types import TracebackType
from typing import Protocol, Self

import torch
from torch import Tensor
from tqdm import tqdm

from pyengine.errors import ModelLoadError


class TensorSource(Protocol):
    """What a checkpoint offers here."""

    def names(self) -> list[str]: ...

    def load(self, name: str, dtype: torch.dtype) -> Tensor: ...


class WeightReader:
    """Tensors by name, each read once, with a progress bar. A context manager.

    Args:
        source: the checkpoint.
        dtype: of the tensors that it returns.
        show_progress: draw the bar, on standard error and if that is a terminal.
    """

    def __init__(self, source: TensorSource, dtype: torch.dtype, *, show_progress: bool) -> None:
        self._source = source
        self._dtype = dtype
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
        if name not in self._names:
            raise ModelLoadError(f"the checkpoint lacks the tensor {name!r}")
        tensor = self._source.load(name, dtype or self._dtype)
        if tensor.shape != shape:
            raise ModelLoadError(
                f"the tensor {name!r} has shape {list(tensor.shape)}, but the model's "
                f"configuration implies {list(shape)}"
            )
        self._bar.update()
        return tensor
