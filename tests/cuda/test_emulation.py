"""The emulation finds what is wrong with a kernel: or else what it lets pass would say little."""

import os
import shlex
import subprocess

from tests.cuda.emulation import ROOT
from tests.cuda.tools import run

COMPILER = [
    *shlex.split(os.environ.get("CXX", "c++")),
    *("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"),
]


def test_it_finds_what_is_wrong_with_kernels(tmp_path):
    program = tmp_path / "simt_checks"
    folders = ("-I", ROOT / "csrc", "-I", ROOT / "tests/cpp")
    run(*COMPILER, *folders, ROOT / "tests/cpp/simt_checks.cpp", "-o", program)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.stdout.endswith(" passed, 0 failed\n"), done.stdout + done.stderr
