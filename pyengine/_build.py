"""What the extensions are built from, and with which flags.

The one list that setup.py reads (CMakeLists.txt globs the same folders). Imports nothing of the
package and nothing heavy, so that a build can load it alone.
"""

import dataclasses
import glob
import importlib.util
import os
import re
import shutil
import subprocess

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = importlib.util.find_spec("torch")
_TORCH_HOME = os.path.dirname(_TORCH.origin) if _TORCH and _TORCH.origin else "torch"

# Compile for the stable ABI of this PyTorch release: the binary then runs on it and on later ones.
TORCH_TARGET_VERSION = "0x020a000000000000"  # 2.10

CXX_FLAGS = [
    "-std=c++20",
    "-O3",
    "-fvisibility=hidden",
    # Exactness: no contraction that the source does not spell out, whatever the instruction set.
    "-ffp-contract=off",
    # The same sources make the same binary wherever they lie: its digest is in the fingerprint.
    f"-ffile-prefix-map={_ROOT}/=",
    f"-ffile-prefix-map={_TORCH_HOME}/=torch/",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",  # PyTorch's stable headers have some
    "-Wno-maybe-uninitialized",  # g++ 12 sees it in its own AVX-512 headers
]
# Warnings are errors here (make sets it), and stay warnings for a user's newer compiler.
if os.environ.get("PYENGINE_WERROR"):
    CXX_FLAGS.append("-Werror")

NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    "-DUSE_CUDA",
    "-fmad=false",  # as -ffp-contract=off above
    "-Xcompiler=-fvisibility=hidden",
    f"-Xcompiler=-ffile-prefix-map={_ROOT}/=",
    f"-Xcompiler=-ffile-prefix-map={_TORCH_HOME}/=torch/",
]

# As in TORCH_CUDA_ARCH_LIST, which goes before it. Processors later than these compile the PTX.
CUDA_ARCHITECTURES = "8.0+PTX 9.0a"

OPS_DEFINES = [("TORCH_TARGET_VERSION", TORCH_TARGET_VERSION)]


def core_sources(root: str = ".") -> list[str]:
    """What holds no tensors, and its pybind11 module: `pyengine._core`."""
    return _sources(root, "csrc/core/*.cpp")


def ops_sources(root: str = ".") -> list[str]:
    """The tensor ops and their CPU kernels: the op library `pyengine._ops`."""
    return _sources(root, "csrc/*.cpp") + _sources(root, "csrc/cpu/*.cpp")


def cuda_sources(root: str = ".") -> list[str]:
    """The CUDA kernels, which join the op library where nvcc can compile them for PyTorch."""
    return _sources(root, "csrc/cuda/*.cu")


def ops_depends(root: str = ".") -> list[str]:
    """Files whose change must rebuild the ops. A source distribution holds them, too, and so the
    CUDA kernels whether or not they are compiled where it is made."""
    headers = [path for kind in ("h", "inc") for path in _sources(root, f"csrc/**/*.{kind}")]
    return headers + cuda_sources(root)


@dataclasses.dataclass(frozen=True)
class CudaChoice:
    is_built: bool
    reason: str


def choose_cuda(
    requested: str, torch_version: str, torch_cuda: str | None, nvcc_cuda: str | None
) -> CudaChoice:
    """Whether the op library gets its CUDA kernels, and why.

    Args:
        requested: PYENGINE_CUDA: "1", "0", or "" to build them if that can be done.
        torch_version: of the installed PyTorch.
        torch_cuda: the version of CUDA that it was built with, or None.
        nvcc_cuda: the version of nvcc, or None if there is none.

    Raises:
        ValueError: they are asked for and can't be built, or `requested` is another word.
    """
    if requested not in ("", "0", "1"):
        raise ValueError(f"PYENGINE_CUDA must be 0 or 1, or unset, got {requested!r}")
    if requested == "0":
        return CudaChoice(False, "PYENGINE_CUDA is 0")
    obstacle = None
    if torch_cuda is None:
        obstacle = f"PyTorch {torch_version} is a build without CUDA"
    elif nvcc_cuda is None:
        obstacle = (
            f"PyTorch {torch_version} needs the nvcc of CUDA {torch_cuda}, and there is none: "
            "put it on the PATH or its toolkit's folder into CUDA_HOME"
        )
    elif nvcc_cuda.split(".")[0] != torch_cuda.split(".")[0]:
        obstacle = (
            f"nvcc is of CUDA {nvcc_cuda} and PyTorch {torch_version} of CUDA {torch_cuda}: "
            "their major versions must be the same"
        )
    if obstacle is None:
        return CudaChoice(True, f"PyTorch {torch_version}, nvcc of CUDA {nvcc_cuda}")
    if requested == "1":
        raise ValueError(f"PYENGINE_CUDA is 1, but {obstacle}")
    return CudaChoice(False, obstacle)


def nvcc_version(nvcc: str | None) -> str | None:
    """The CUDA version of a compiler ("13.0"), or None if it isn't there."""
    if nvcc is None or shutil.which(nvcc) is None:
        return None
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+\.\d+)", said)
    return found[1] if found else None


def _sources(root: str, pattern: str) -> list[str]:
    found = glob.glob(os.path.join(root, pattern), recursive=True)
    return sorted(os.path.relpath(path, root) for path in found)
