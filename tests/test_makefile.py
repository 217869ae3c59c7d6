"""What `make install` says where something that it needs is missing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1]


@pytest.fixture
def make_install(tmp_path: Path):
    """Runs `make install` on an empty tree; returns what it printed to standard error."""
    shutil.copy(SOURCE / "Makefile", tmp_path)
    for name in ("csrc", "tests"):
        (tmp_path / name).mkdir()

    def make_install(*variables: str) -> str:
        run = subprocess.run(
            ["make", "install", *variables],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 2
        assert not (tmp_path / ".venv").exists()
        return run.stderr

    return make_install


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_is_not_there_is_named(make_install):
    assert "pyengine: no-such-python is not found" in make_install("PYTHON=no-such-python")


def test_an_old_python_is_named_with_its_version(make_install, tmp_path: Path):
    script = 'if [ "$1" = -V ]; then echo Python 3.9.18; else exit 1; fi'
    python = _script(tmp_path / "old-python", script)
    assert f"needs Python 3.11 or later, and {python} is Python 3.9.18" in make_install(
        f"PYTHON={python}"
    )


def test_a_python_without_venv_is_told_apart(make_install, tmp_path: Path):
    script = f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"'
    python = _script(tmp_path / "bare-python", script)
    assert "install python3-venv" in make_install(f"PYTHON={python}")


def test_a_missing_compiler_is_told_before_anything_is_installed(make_install):
    error = make_install(f"PYTHON={sys.executable}", "CXX=no-such-compiler")
    assert "pyengine: no C++ compiler: install g++" in error
