"""The engine's options."""

from dataclasses import dataclass
from typing import Literal

# A number beyond any machine: so many threads can't be started, and the process dies of trying.
MAX_NUM_THREADS = 1024

DeviceName = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["auto", "none", "int8", "int4"]
KVCacheDtype = Literal["auto", "int8"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of one engine, checked once. The defaults work on a laptop.

    Args:
        model: a folder, a .gguf file, a hub name, or the demo's name.
        device: where to compute; "auto" takes a GPU ("cuda") if there is one and pyengine was built
            for it.
        dtype: of weights, activations and KV cache; "auto" takes bfloat16 unless the checkpoint
            is float32, on a GPU always. float16 is for GPUs alone, float32 for CPUs.
        quantization: "auto" computes with quantized weights as the checkpoint has them, in their
            integers; "none" turns them into numbers of the dtype first; "int8" and "int4" quantize
            the weights of a float checkpoint while it is read. On a GPU, "auto" is "none".
        exact: compute matrix products so that answers don't depend on what else is in a batch. On
            a GPU this may be given up for the products of cuBLAS.
        max_model_len: the longest sequence, prompt and output, in tokens; None takes the model's.
        max_num_seqs: the most sequences in one step; None takes 64 on a CPU, 256 on a GPU.
        max_num_batched_tokens: the most tokens fed in one step; longer prompts go in chunks;
            None takes 512 on a CPU, 8192 on a GPU.
        target_itl_ms: how long a step may take that feeds prompts while streams run: prompts go in
            chunks that keep to it, since each stream gets a token per step.
        max_draft_tokens: the most tokens guessed ahead in a sequence, from what followed its last
            tokens when they occurred before, and checked in one step; results are the same. 0
            guesses none; None takes 8 on a CPU, 0 on a GPU.
        block_size: tokens per block of the KV cache; on a GPU 16 or 32.
        num_kv_blocks: blocks in the KV cache; None sizes it from `kv_cache_bytes`.
        kv_cache_dtype: "int8" keeps keys and values in about half the memory of bfloat16, with a
            scale for each token and head; "auto" takes the model's dtype.
        kv_cache_bytes: memory for the KV cache; None takes a quarter of what is free, or on a GPU
            what gpu_memory_utilization leaves, at most what max_num_seqs sequences of
            max_model_len could use.
        gpu_memory_utilization: the part of a GPU's memory that the engine may use in all.
        enable_prefix_caching: reuse the K/V of a prefix that an earlier sequence had.
        max_num_waiting: once so many sequences wait, new requests are refused.
        num_threads: of the kernels, at most 1024; None takes one per core.
        seed: from which seeds are drawn for requests that bring none; None draws it too.
    """

    model: str
    device: DeviceName = "auto"
    dtype: Dtype = "auto"
    quantization: Quantization = "auto"
    exact: bool = True
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    target_itl_ms: float = 25.0
    max_draft_tokens: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_dtype: KVCacheDtype = "auto"
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    max_num_waiting: int = 1024
    num_threads: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda, got {self.device!r}")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(
                f"dtype must be auto, float32, bfloat16 or float16, got {self.dtype!r}"
            )
        if self.quantization not in ("auto", "none", "int8", "int4"):
            raise ValueError(
                f"quantization must be auto, none, int8 or int4, got {self.quantization!r}"
            )
        if self.kv_cache_dtype not in ("auto", "int8"):
            raise ValueError(f"kv_cache_dtype must be auto or int8, got {self.kv_cache_dtype!r}")
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "num_kv_blocks",
            "kv_cache_bytes",
            "max_num_waiting",
            "num_threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.max_draft_tokens is not None and self.max_draft_tokens < 0:
            raise ValueError(f"max_draft_tokens must be at least 0, got {self.max_draft_tokens}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                "gpu_memory_utilization must be more than 0 and at most 1, "
                f"got {self.gpu_memory_utilization}"
            )
        if not self.target_itl_ms > 0:
            raise ValueError(f"target_itl_ms must be more than 0, got {self.target_itl_ms}")
        if self.num_threads is not None and self.num_threads > MAX_NUM_THREADS:
            raise ValueError(
                f"num_threads must be at most {MAX_NUM_THREADS}, got {self.num_threads}"
            )
