"""Builds the two extensions ahead of time; everything else about the package is in pyproject.toml.

`pyengine._core` is a pybind11 module, bound to one CPython version. `pyengine._ops` is a library of
PyTorch operators on the stable ABI: it knows nothing of Python and serves PyTorch 2.10 and later.
"""

import importlib.util

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

spec = importlib.util.spec_from_file_location("_build", "pyengine/_build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

core = Pybind11Extension(
    "pyengine._core",
    build.core_sources(),
    depends=build.ops_depends(),
    extra_compile_args=build.CXX_FLAGS,
)
ops = CppExtension(
    "pyengine._ops",
    build.ops_sources(),
    depends=build.ops_depends(),
    define_macros=build.OPS_DEFINES,
    extra_compile_args={"cxx": build.CXX_FLAGS},
)

setup(
    ext_modules=[core, ops],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
)
