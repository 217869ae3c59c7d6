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


def has_cuda_kernels() -> bool:
    """Whether the library was built with its CUDA kernels. (Not whether there is a GPU.)"""
    return torch._C._dispatch_has_kernel_for_dispatch_key("pyengine::paged_attention", "CUDA")
