"""A GPU."""

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyengine import ops
from pyengine.config import EngineConfig
from pyengine.engine.devices.device import CacheShape, StepLimits
from pyengine.engine.devices.graphs import CudaCapture, DecodeGraphs
from pyengine.engine.devices.packing import PackedTensors
from pyengine.errors import ModelLoadError
from pyengine.models.config import ModelConfig
from pyengine.models.layers import AttentionInputs, KVCache
from pyengine.models.registry import CausalLM

if TYPE_CHECKING:
    from pyengine.engine.loading import LoadedModel

# What the attention kernels are compiled for.
HEAD_SIZES = (64, 80, 96, 128, 256)
BLOCK_SIZES = (16, 32)

# Captured graphs keep memory of their own: about this much for each sequence of the largest one.
_GRAPH_BYTES_PER_SEQ = 4 << 20


def why_there_is_none() -> str | None:
    """Why no GPU can be used, or None if one can."""
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU (torch.cuda.is_available() is false)"
    if not ops.has_cuda_kernels():
        return (
            "pyengine was built without its CUDA kernels: install it with a CUDA build of PyTorch "
            "and nvcc at hand"
        )
    return None


class CudaDevice:
    """See Device. One GPU: the current one of PyTorch."""

    torch_device = torch.device("cuda")
    smallest_block_size = min(BLOCK_SIZES)

    def limits(self, config: EngineConfig) -> StepLimits:
        # Steps with guesses are none of those that graphs are captured of.
        return StepLimits.of(config, StepLimits(256, 8192, max_draft_tokens=0))

    def resolve_dtype(self, config: EngineConfig, model: ModelConfig) -> torch.dtype:
        if config.quantization not in ("auto", "none"):
            raise ValueError(
                f"quantization must be auto or none on a GPU, got {config.quantization!r}"
            )
        if config.kv_cache_dtype != "auto":
            raise ValueError(f"kv_cache_dtype must be auto on a GPU, got {config.kv_cache_dtype!r}")
        if config.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size must be 16 or 32 on a GPU, got {config.block_size}")
        if config.dtype == "float32":
            raise ValueError("dtype must be auto, bfloat16 or float16 on a GPU, got 'float32'")
        if model.head_size not in HEAD_SIZES:
            raise ModelLoadError(
                f"config.json: heads of {model.head_size} values are not supported on a GPU, only "
                f"of {', '.join(map(str, HEAD_SIZES))}: choose the device cpu"
            )
        return torch.float16 if config.dtype == "float16" else torch.bfloat16

    def computes_with_quantized(self) -> bool:
        return False

    def names(self) -> tuple[str, ...]:
        return "cuda", torch.cuda.get_device_name()

    def describe(self) -> str:
        return f"CUDA kernels on {torch.cuda.get_device_name()}"

    def total_memory_bytes(self) -> int:
        _, total_bytes = torch.cuda.mem_get_info()
        return total_bytes

    def default_cache_bytes(self, config: EngineConfig, loaded: "LoadedModel") -> int:
        """What gpu_memory_utilization leaves when weights are loaded and the largest step has run,
        other processes' memory and that of captured graphs set aside."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        limits = self.limits(config)
        self._run_largest_step(config, loaded, limits)
        self.synchronize()
        peak_bytes = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        other_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved()
        graph_bytes = limits.max_num_seqs * _GRAPH_BYTES_PER_SEQ
        allowed_bytes = int(total_bytes * config.gpu_memory_utilization)
        return max(0, allowed_bytes - other_bytes - peak_bytes - graph_bytes)

    def _run_largest_step(
        self, config: EngineConfig, loaded: "LoadedModel", limits: StepLimits
    ) -> None:
        """A step on as many tokens and sequences as there may be, on a cache that is given up."""
        shape = loaded.config
        num_tokens = min(limits.max_num_batched_tokens, loaded.max_model_len)
        num_blocks = -(-num_tokens // config.block_size)
        cache = self.new_kv_cache(
            CacheShape(
                *(shape.num_layers, num_blocks, shape.num_kv_heads),
                *(config.block_size, shape.head_size, loaded.kv_cache_dtype),
            )
        )
        positions = torch.arange(num_tokens)
        token_ids, positions, table, start_loc, seq_lens = self.place(
            [
                torch.zeros(num_tokens, dtype=torch.int64),
                positions,
                torch.arange(num_blocks, dtype=torch.int32)[None],
                torch.tensor([0, num_tokens], dtype=torch.int32),
                torch.tensor([num_tokens], dtype=torch.int32),
            ]
        )
        inputs = AttentionInputs(positions, positions, table, start_loc, seq_lens)
        with torch.inference_mode():
            hidden = loaded.model.forward(loaded.model.embed(token_ids), inputs, cache)
            # Sampling may need a second copy of the logits, for log-probabilities.
            loaded.model.logits(hidden[: limits.max_num_seqs]).clone()

    def new_kv_cache(self, shape: CacheShape) -> KVCache:
        cache = torch.zeros(
            [
                *(shape.num_blocks, shape.num_layers, 2),
                *(shape.num_kv_heads, shape.block_size, shape.head_size),
            ],
            dtype=shape.dtype,
            device=self.torch_device,
        )
        return KVCache(cache[:, :, 0], cache[:, :, 1])

    def new_graphs(
        self, model: CausalLM, cache: KVCache, max_num_seqs: int, max_blocks_per_seq: int
    ) -> DecodeGraphs:
        return DecodeGraphs(
            model, cache, max_num_seqs, max_blocks_per_seq, self.torch_device, CudaCapture()
        )

    def synchronize(self) -> None:
        torch.cuda.current_stream().synchronize()

    def place(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """By one copy from one piece of pinned memory."""
        packed = PackedTensors.pack(tensors, pin_memory=True)
        return packed.unpack(packed.memory.to(self.torch_device, non_blocking=True))
