"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest
import torch

from pyengine.weights import resolve_model
from tests.cuda import nvcc

_CUDA_TESTS = Path(__file__).parent / "cuda"
_IS_CUDA_AVAILABLE = torch.cuda.is_available
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_FORMER_DEVICES = os.environ.get(_VISIBLE_DEVICES)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hides a GPU from all tests but those in cuda/: what they expect is what a CPU does. That goes
    for the processes that they start, too."""
    if _CUDA_TESTS in item.path.parents:
        torch.cuda.is_available = _IS_CUDA_AVAILABLE
        if _FORMER_DEVICES is None:
            os.environ.pop(_VISIBLE_DEVICES, None)
        else:
            os.environ[_VISIBLE_DEVICES] = _FORMER_DEVICES
    else:
        torch.cuda.is_available = lambda: False
        os.environ[_VISIBLE_DEVICES] = ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not nvcc.NVCC:
        terminalreporter.write_line(nvcc.NOT_FOUND, yellow=True)


@pytest.fixture(scope="session")
def demo_model_path() -> Path:
    """The demo model's .gguf file, fetched by the first test that asks for it."""
    return resolve_model("smollm2-135m-instruct")
