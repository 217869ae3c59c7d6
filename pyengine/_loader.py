"""Loads the compiled extensions, once, with an error that says what to do when that fails."""

import functools
import hashlib
import pathlib
from types import ModuleType

_HOW_TO_BUILD = (
    "build it with `pip install --no-build-isolation -e .` in the source tree "
    "(or `make install`), or install a wheel made for this Python and PyTorch"
)


@functools.cache
def load_ops() -> None:
    """Registers the operators `torch.ops.pyengine.*`.

    Raises:
        ImportError: the library is missing, PyTorch can't load it, or PYENGINE_ISA names an
            instruction set that this processor doesn't have.
    """
    import torch

    library = _ops_library()
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"PyTorch {torch.__version__} can't load {library.name} "
            f"(it needs PyTorch 2.10 or later): {error}; {_HOW_TO_BUILD}"
        ) from error
    try:
        torch.ops.pyengine.isa_name()
    except RuntimeError as error:
        raise ImportError(str(error)) from error


@functools.cache
def ops_digest() -> str:
    """SHA-256 of the operator library: another one if a kernel or its compiler has changed."""
    return hashlib.sha256(_ops_library().read_bytes()).hexdigest()


def _ops_library() -> pathlib.Path:
    found = sorted(pathlib.Path(__file__).parent.glob("_ops*.so"))
    if not found:
        raise ImportError(f"pyengine's operator library is not built: {_HOW_TO_BUILD}")
    return found[0]


@functools.cache
def load_core() -> ModuleType:
    """The pybind11 module with the block allocator.

    Raises:
        ImportError: the module is missing, or was built for another Python.
    """
    try:
        from pyengine import _core
    except ImportError as error:
        raise ImportError(f"pyengine._core can't be loaded: {error}; {_HOW_TO_BUILD}") from error
    return _core
