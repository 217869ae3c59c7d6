"""What the engine asks of the device that it runs on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from pyengine.config import EngineConfig
from pyengine.engine.devices.graphs import DecodeGraphs
from pyengine.models.config import ModelConfig
from pyengine.models.layers import KVCache
from pyengine.models.registry import CausalLM

if TYPE_CHECKING:
    from pyengine.engine.loading import LoadedModel


@dataclass(frozen=True)
class StepLimits:
    """How large a step may be; see EngineConfig."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_draft_tokens: int

    @classmethod
    def of(cls, config: EngineConfig, defaults: "StepLimits") -> "StepLimits":
        """Those of the options, or where they are None the defaults."""
        names = [field.name for field in fields(cls)]
        given = {name: getattr(config, name) for name in names}
        return replace(defaults, **{n: value for n, value in given.items() if value is not None})


@dataclass(frozen=True)
class CacheShape:
    """The paged keys and values of all layers."""

    num_layers: int
    num_blocks: int
    num_kv_heads: int
    block_size: int
    head_size: int
    dtype: torch.dtype


class Device(Protocol):
    """A kind of processor and its memory."""

    torch_device: torch.device
    smallest_block_size: int  # tokens

    def limits(self, config: EngineConfig) -> StepLimits:
        """Those of the options, or where they are None those that suit the device."""

    def resolve_dtype(self, config: EngineConfig, model: ModelConfig) -> torch.dtype:
        """The dtype to compute in.

        Raises:
            ValueError: options ask for what the device's kernels don't do.
            ModelLoadError: the model does.
        """

    def computes_with_quantized(self) -> bool:
        """Whether its kernels multiply with quantized weights, or need them dequantized."""

    def names(self) -> tuple[str, ...]:
        """What decides the bits of a result beside the code: for fingerprints."""

    def describe(self) -> str:
        """Its kernels, for people."""

    def total_memory_bytes(self) -> int:
        """All memory that a cache could ever take."""

    def default_cache_bytes(self, config: EngineConfig, loaded: "LoadedModel") -> int:
        """What the KV cache gets if nothing was said."""

    def new_kv_cache(self, shape: CacheShape) -> KVCache:
        """An empty cache."""

    def new_graphs(
        self, model: CausalLM, cache: KVCache, max_num_seqs: int, max_blocks_per_seq: int
    ) -> DecodeGraphs | None:
        """What runs steps of one token a sequence, or None: then they run as any others do."""

    def synchronize(self) -> None:
        """Waits until all that was launched is done."""

    def place(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Small tensors of the CPU, on the device; nothing waits for the copy."""
