"""Fixtures for all tests."""

from pathlib import Path

import pytest

from pyengine.weights import resolve_model


@pytest.fixture(scope="session")
def demo_model_path() -> Path:
    """The demo model's .gguf file, fetched by the first test that asks for it."""
    return resolve_model("smollm2-135m-instruct")
