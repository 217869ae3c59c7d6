"""The processor."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyengine import ops
from pyengine.config import EngineConfig
from pyengine.engine.devices.device import CacheShape, StepLimits
from pyengine.engine.memory import available_memory_bytes, total_memory_bytes
from pyengine.models.config import ModelConfig
from pyengine.models.layers import KVCache, new_kv_cache
from pyengine.models.registry import CausalLM

if TYPE_CHECKING:
    from pyengine.engine.loading import LoadedModel

# What the KV cache takes of the memory that is free when the engine starts.
_KV_CACHE_SHARE = 0.25


class CpuDevice:
    """See Device."""

    torch_device = torch.device("cpu")
    smallest_block_size = 1

    def limits(self, config: EngineConfig) -> StepLimits:
        return StepLimits.of(config, StepLimits(64, 512, max_draft_tokens=8))

    def resolve_dtype(self, config: EngineConfig, model: ModelConfig) -> torch.dtype:
        if config.dtype == "float16":
            raise ValueError("dtype must be auto, float32 or bfloat16 on a CPU, got 'float16'")
        if not config.exact:
            raise ValueError("exact must be true on a CPU, where exactness costs no time")
        return model.resolve_dtype(config.dtype)

    def computes_with_quantized(self) -> bool:
        return True

    def names(self) -> tuple[str, ...]:
        return "cpu", ops.isa_name()

    def describe(self) -> str:
        return f"{ops.isa_name()} kernels on {torch.get_num_threads()} threads"

    def total_memory_bytes(self) -> int:
        return total_memory_bytes()

    def default_cache_bytes(self, config: EngineConfig, loaded: "LoadedModel") -> int:
        return int(available_memory_bytes() * _KV_CACHE_SHARE)

    def new_kv_cache(self, shape: CacheShape) -> KVCache:
        return new_kv_cache(*astuple(shape))

    def new_graphs(
        self, model: CausalLM, cache: KVCache, max_num_seqs: int, max_blocks_per_seq: int
    ) -> None:
        return None

    def synchronize(self) -> None:
        pass

    def place(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)
