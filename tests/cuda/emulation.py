"""Builds the CUDA backend for the emulation on the CPU (csrc/testing/simt.h) and loads it.

`python -m tests.cuda.emulation` builds it ahead of the tests, so that they needn't wait for it.
"""

import sys
from pathlib import Path

from filelock import FileLock

from tests.cuda import tools

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/emulated"
LIBRARY = FOLDER / "_ops_emulated.so"


def build() -> Path:
    """The library, as new as its sources.

    Raises:
        RuntimeError: it doesn't compile, or CMake is missing.
    """
    cmake = tools.find("cmake")
    python = f"-DPython_EXECUTABLE={sys.executable}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / "lock"):  # the tests may run in several processes
        tools.run(cmake, "-S", ROOT, "-B", FOLDER, "-G", "Ninja", python)
        tools.run(cmake, "--build", FOLDER, "--target", "_ops_emulated")
    return LIBRARY


if __name__ == "__main__":
    build()
