"""The library of the operators, loaded."""

import torch

from pyengine._loader import load_ops

load_ops()
ops = torch.ops.pyengine


def isa_name() -> str:
    """The instruction set that the CPU kernels use: "portable", "avx2" or "avx512".

    Raises:
        RuntimeError: PYENGINE_ISA asks for one that this processor doesn't have.
    """
    return ops.isa_name()
