"""Whether the CUDA kernels are built, and what is said of it."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from pyengine import _build, ops

SOURCE = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("requested", "torch_cuda", "nvcc_cuda", "is_built", "reason"),
    [
        ("", "13.0", "13.0", True, "PyTorch 2.13.0, nvcc of CUDA 13.0"),
        ("1", "12.8", "12.4", True, "PyTorch 2.13.0, nvcc of CUDA 12.4"),
        ("0", "13.0", "13.0", False, "PYENGINE_CUDA is 0"),
        ("", None, "13.0", False, "PyTorch 2.13.0 is a build without CUDA"),
        ("", "13.0", None, False, "needs the nvcc of CUDA 13.0, and there is none"),
        ("", "12.8", "13.0", False, "their major versions must be the same"),
    ],
)
def test_cuda_kernels_are_built_where_they_can_be(
    requested, torch_cuda, nvcc_cuda, is_built, reason
):
    choice = _build.choose_cuda(requested, "2.13.0", torch_cuda, nvcc_cuda)
    assert choice.is_built == is_built
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("requested", "torch_cuda", "nvcc_cuda", "message"),
    [
        ("1", None, "13.0", "PYENGINE_CUDA is 1, but PyTorch 2.13.0 is a build without CUDA"),
        ("1", "13.0", None, "put it on the PATH or its toolkit's folder into CUDA_HOME"),
        ("1", "12.8", "13.0", "nvcc is of CUDA 13.0 and PyTorch 2.13.0 of CUDA 12.8"),
        ("yes", "13.0", "13.0", "PYENGINE_CUDA must be 0 or 1, or unset, got 'yes'"),
    ],
)
def test_what_is_missing_for_them_is_named(requested, torch_cuda, nvcc_cuda, message):
    with pytest.raises(ValueError, match=message):
        _build.choose_cuda(requested, "2.13.0", torch_cuda, nvcc_cuda)


def test_the_version_of_nvcc_is_read_from_what_it_says(tmp_path):
    nvcc = tmp_path / "nvcc"
    assert _build.nvcc_version(str(nvcc)) is None
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
    nvcc.chmod(0o755)
    assert _build.nvcc_version(str(nvcc)) == "12.4"


def run_setup(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", *map(str, arguments)],
        cwd=SOURCE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_build_says_what_it_is_for_and_why(tmp_path):
    """With compilers that do nothing but fail: the line comes before they are called."""
    folders = (f"--build-temp={tmp_path}", f"--build-lib={tmp_path}")
    done = run_setup("build_ext", *folders, PYENGINE_CUDA="0", CXX="false")
    line = "pyengine: building kernels for the CPU alone: PYENGINE_CUDA is 0\n"
    assert done.stdout.count(line) == 1


def test_a_wrong_request_ends_the_build_with_a_sentence():
    done = run_setup("--version", PYENGINE_CUDA="maybe")
    assert done.returncode == 1
    assert done.stderr == "pyengine: PYENGINE_CUDA must be 0 or 1, or unset, got 'maybe'\n"


def test_a_source_distribution_holds_the_cuda_kernels(tmp_path):
    metadata = ("egg_info", f"--egg-base={tmp_path}")
    done = run_setup(*metadata, "sdist", f"--dist-dir={tmp_path}", PYENGINE_CUDA="0")
    assert done.returncode == 0, done.stderr
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {str(path.relative_to(SOURCE)) for path in (SOURCE / "csrc/cuda").iterdir()} <= names


def test_python_knows_whether_the_library_has_cuda_kernels():
    def kernel(*_):
        raise NotImplementedError

    with torch.library._scoped_library("pyengine", "IMPL") as library:
        if not ops.has_cuda_kernels():
            library.impl("paged_attention", kernel, "CUDA")
        assert ops.has_cuda_kernels()
