from typing import Any

import pytest

import pyengine
from tests.cli.fakes import FakeLLM


@pytest.fixture
def llms(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """Every `pyengine.LLM` that a command makes, as a fake."""
    made: list[FakeLLM] = []

    def make(**config: Any) -> FakeLLM:
        made.append(FakeLLM(**config))
        return made[-1]

    # Not setattr, which would import the real one to look at it.
    monkeypatch.setitem(vars(pyengine), "LLM", make)
    return made
