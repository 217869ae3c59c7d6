"""Compiles the CUDA backend with nvcc, if there is one, whichever PyTorch is installed: without
linking, for what the compiler says of the kernels.

`python -m tests.cuda.nvcc` compiles ahead of the tests what has changed.
"""

import importlib.util
import shlex
import shutil
from pathlib import Path

from pyengine import _build
from tests.cuda import tools

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/nvcc"
NVCC = shutil.which("nvcc")
NOT_FOUND = "nvcc isn't found: the CUDA kernels were run in the emulation, and not compiled"
SOURCES = _build.cuda_sources(str(ROOT))
ARCHITECTURES = ["80", "90a"]

_NINJA = """\
rule nvcc
  command = $nvcc -MD -MF $out.d -c $in -o $out >$out.log 2>&1 || {{ cat $out.log; false; }}
  depfile = $out.d
  deps = gcc
nvcc = {command}
"""


def compile_all() -> None:
    """Makes the objects, and beside each what nvcc said, as new as their sources.

    Raises:
        RuntimeError: one doesn't compile.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    builds = [f"build {Path(source).stem}.o: nvcc {ROOT / source}\n" for source in SOURCES]
    (FOLDER / "build.ninja").write_text(_NINJA.format(command=_command()) + "".join(builds))
    tools.run(tools.find("ninja"), "-C", FOLDER)


def log_of(source: str) -> str:
    """What nvcc said of a source, the registers of its kernels included."""
    return (FOLDER / f"{Path(source).stem}.o.log").read_text()


def _command() -> str:
    assert NVCC is not None
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    include = Path(torch.origin).parent / "include"
    architectures = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    defines = [f"-D{name}={value}" for name, value in _build.OPS_DEFINES]
    folders = [f"-isystem={include}", f"-isystem={include}/torch/csrc/api/include"]
    options = ["-Xcompiler=-fPIC", "-Xptxas=-v", "--threads=2"]
    return shlex.join([NVCC, *_build.NVCC_FLAGS, *architectures, *defines, *folders, *options])


if __name__ == "__main__":
    if NVCC is None:
        print(NOT_FOUND)
    else:
        compile_all()
