"""What the extensions are built from, and with which flags.

The one list that setup.py reads (CMakeLists.txt globs the same folders). Imports nothing of the
package and nothing heavy, so that a build can load it alone.
"""

import glob
import importlib.util
import os

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

OPS_DEFINES = [("TORCH_TARGET_VERSION", TORCH_TARGET_VERSION)]


def core_sources(root: str = ".") -> list[str]:
    """What holds no tensors, and its pybind11 module: `pyengine._core`."""
    return _sources(root, "csrc/core/*.cpp")


def ops_sources(root: str = ".") -> list[str]:
    """The tensor ops and their CPU kernels: the op library `pyengine._ops`."""
    return _sources(root, "csrc/*.cpp") + _sources(root, "csrc/cpu/*.cpp")


def ops_depends(root: str = ".") -> list[str]:
    """Headers whose change must rebuild the ops."""
    return [path for kind in ("h", "inc") for path in _sources(root, f"csrc/**/*.{kind}")]


def _sources(root: str, pattern: str) -> list[str]:
    found = glob.glob(os.path.join(root, pattern), recursive=True)
    return sorted(os.path.relpath(path, root) for path in found)
