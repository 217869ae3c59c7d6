"""pyengine: a low-latency LLM serving engine."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyengine.config import EngineConfig
    from pyengine.engine import AsyncEngine
    from pyengine.llm import LLM
    from pyengine.sampling_params import Grammar, SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncEngine", "EngineConfig", "Grammar", "SamplingParams", "__version__"]

# Loaded on first use: `pyengine --help` has no need of PyTorch.
_HOMES = {
    "LLM": "pyengine.llm",
    "AsyncEngine": "pyengine.engine",
    "EngineConfig": "pyengine.config",
    "Grammar": "pyengine.sampling_params",
    "SamplingParams": "pyengine.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
