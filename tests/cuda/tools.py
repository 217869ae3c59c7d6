"""Runs the tools that compile the CUDA backend for tests."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

# Those of pyengine[test] stand beside the interpreter.
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def find(name: str) -> str:
    """A tool that is among the requirements of the tests."""
    tool = shutil.which(name, path=_PATH)
    if tool is None:
        raise RuntimeError(f"{name} is among the requirements of the tests: install pyengine[test]")
    return tool


def run(*command: object) -> None:
    """Raises RuntimeError with all that the command printed if it fails."""
    words = [str(word) for word in command]
    environment = {**os.environ, "PATH": _PATH}
    done = subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(words)}\n{done.stdout}")
