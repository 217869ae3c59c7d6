"""The engine: scheduler, KV cache manager, model runner, and their asynchronous face."""

from pyengine.engine.async_engine import AsyncEngine
from pyengine.engine.engine import Engine
from pyengine.engine.faults import FaultInjection
from pyengine.engine.sequence import Request
from pyengine.engine.stats import EngineStats

__all__ = ["AsyncEngine", "Engine", "EngineStats", "FaultInjection", "Request"]
