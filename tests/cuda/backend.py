"""One face for the kernels of the CUDA backend, wherever they run."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pyengine.ops  # noqa: F401, which registers the operators
from tests.cuda import emulation


@dataclass(frozen=True)
class Backend:
    """Calls operators by name with tensors of the CPU, and returns such.

    Args:
        library: torch.ops.pyengine or its emulated twin.
        device: where the tensors go for the call.
    """

    library: Any
    device: torch.device

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = getattr(self.library, name)

        def call(*args: Any) -> Any:
            """What the op changes is changed in the caller's tensors, too."""
            moved = [a.to(self.device) if isinstance(a, Tensor) else a for a in args]
            result = operator(*moved)
            for before, after in zip(args, moved, strict=True):
                if isinstance(before, Tensor) and before is not after:
                    before.copy_(after)
            return torch.utils._pytree.tree_map_only(Tensor, Tensor.cpu, result)

        return call


@functools.cache
def _emulated_library() -> Any:
    torch.ops.load_library(str(emulation.build()))
    return torch.ops.pyengine_emulated


def emulated(*, is_descending: bool = False) -> Backend:
    """The kernels on the CPU, the threads of a block in this order."""
    library = _emulated_library()
    library.set_descending(is_descending)
    return Backend(library, torch.device("cpu"))


def real() -> Backend:
    return Backend(torch.ops.pyengine, torch.device("cuda"))
