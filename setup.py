"""Builds the two extensions ahead of time; everything else about the package is in pyproject.toml.

`pyengine._core` is a pybind11 module, bound to one CPython version. `pyengine._ops` is a library of
PyTorch operators on the stable ABI: it knows nothing of Python and serves PyTorch 2.10 and later.
It has the CUDA kernels, too, if PyTorch is a build with CUDA and nvcc is there; PYENGINE_CUDA=0
leaves them out, PYENGINE_CUDA=1 makes it an error if they can't be built.
"""

import importlib.util
import os
import sys

import torch
from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup
from torch.utils.cpp_extension import (
    CUDA_HOME,
    BuildExtension,
    CppExtension,
    CUDAExtension,
    _get_cuda_arch_flags,
)

spec = importlib.util.spec_from_file_location("_build", "pyengine/_build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

nvcc = os.path.join(CUDA_HOME, "bin", "nvcc") if CUDA_HOME else None
try:
    cuda = build.choose_cuda(
        os.environ.get("PYENGINE_CUDA", ""),
        torch.__version__,
        torch.version.cuda,
        build.nvcc_version(nvcc),
    )
except ValueError as error:
    sys.exit(f"pyengine: {error}")
nvcc_flags = build.NVCC_FLAGS
if cuda.is_built:
    os.environ["TORCH_CUDA_ARCH_LIST"] = (
        os.environ.get("TORCH_CUDA_ARCH_LIST") or build.CUDA_ARCHITECTURES
    )
    # BuildExtension would add them unless a flag contains "arch", as paths in "research" do.
    nvcc_flags = nvcc_flags + _get_cuda_arch_flags()


class BuildExtensions(BuildExtension):
    def build_extensions(self) -> None:
        kernels = "for the CPU and for CUDA" if cuda.is_built else "for the CPU alone"
        print(f"pyengine: building kernels {kernels}: {cuda.reason}", flush=True)
        super().build_extensions()


core = Pybind11Extension(
    "pyengine._core",
    build.core_sources(),
    depends=build.ops_depends(),
    extra_compile_args=build.CXX_FLAGS,
)
ops = (CUDAExtension if cuda.is_built else CppExtension)(
    "pyengine._ops",
    build.ops_sources() + (build.cuda_sources() if cuda.is_built else []),
    depends=build.ops_depends(),
    define_macros=build.OPS_DEFINES,
    extra_compile_args={"cxx": build.CXX_FLAGS, "nvcc": nvcc_flags},
)

setup(ext_modules=[core, ops], cmdclass={"build_ext": BuildExtensions})
