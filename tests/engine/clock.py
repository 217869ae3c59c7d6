"""Time that a test moves on."""

import time

import pytest


class Clock:
    """Stands in for the engine's `time`: it runs, and jumps ahead when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_ns = 0
        monkeypatch.setattr("pyengine.engine.engine.time", self)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self._ahead_ns

    def jump(self, seconds: float) -> None:
        self._ahead_ns += int(seconds * 1e9)
