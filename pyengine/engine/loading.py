"""Loads all that an engine needs to know of a model."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from pyengine import __version__
from pyengine._loader import ops_digest
from pyengine.config import EngineConfig, Quantization
from pyengine.engine.devices import CpuDevice, Device, find_device
from pyengine.engine.sampling_defaults import read_sampling_defaults
from pyengine.errors import ModelLoadError
from pyengine.models import ModelConfig, load_model
from pyengine.models.registry import CausalLM
from pyengine.models.weight_reader import TensorSource
from pyengine.text.chat_template import ChatTemplate
from pyengine.text.tokenizer import Tokenizer, load_tokenizer
from pyengine.weights import Checkpoint, open_checkpoint, resolve_model
from pyengine.weights.quantizing import QuantizingSource

_CPU = CpuDevice()


@dataclass(frozen=True)
class LoadedModel:
    """A model and its texts, ready to run."""

    name: str  # as the user called it
    model: CausalLM
    config: ModelConfig
    dtype: torch.dtype
    kv_cache_dtype: torch.dtype  # that of the model, or int8
    max_model_len: int
    fingerprint: str  # another one if the numbers that it computes can be others
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    device: Device = _CPU
    sampling_defaults: dict[str, Any] = field(default_factory=dict)  # see sampling_defaults.py


def load(config: EngineConfig, *, show_progress: bool = False) -> LoadedModel:
    """Finds the model's files and reads them.

    Raises:
        ModelLoadError: they are missing, broken or unsupported.
        ValueError: max_model_len is more than the model was made for, quantization is asked of
            weights that have it, or the device is missing or can't do what is asked.
    """
    device = find_device(config.device)
    path = resolve_model(config.model, show_progress=show_progress)
    checkpoint = open_checkpoint(path)
    model_config = ModelConfig.from_dict(checkpoint.config)
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    if max_model_len > model_config.max_position_embeddings:
        raise ValueError(
            f"max_model_len must be at most {model_config.max_position_embeddings}, the length "
            f"that {config.model} was made for, got {max_model_len}"
        )
    tokenizer = load_tokenizer(path)
    if tokenizer.vocab_size > model_config.vocab_size:
        raise ModelLoadError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, but the model's vocabulary "
            f"only {model_config.vocab_size}"
        )
    dtype = device.resolve_dtype(config, model_config)
    source, quantization = _quantize(checkpoint, config)
    if not device.computes_with_quantized():
        quantization = "none"
    kv_cache_dtype = torch.int8 if config.kv_cache_dtype == "int8" else dtype
    with ThreadPoolExecutor(1) as executor:  # hashing and copying take about the same time
        digest = executor.submit(checkpoint.digest)
        model = load_model(
            model_config,
            source,
            dtype,
            max_model_len,
            device=device.torch_device,
            exact=config.exact,
            quantization=quantization,
            show_progress=show_progress,
        )
    template = None
    if tokenizer.chat_template is not None:
        template = ChatTemplate(
            tokenizer.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
        )
    return LoadedModel(
        name=config.model,
        model=model,
        config=model_config,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        fingerprint=fingerprint(
            digest.result(), dtype, kv_cache_dtype, quantization, device, exact=config.exact
        ),
        tokenizer=tokenizer,
        chat_template=template,
        device=device,
        sampling_defaults=read_sampling_defaults(path),
    )


def _quantize(checkpoint: Checkpoint, config: EngineConfig) -> tuple[TensorSource, Quantization]:
    """Where the model's tensors come from, and which quantization they have: "none" if the option
    makes no difference.

    Raises:
        ValueError: weights that are quantized already are to be quantized.
    """
    if config.quantization == "auto" or config.quantization == "none":
        return checkpoint, config.quantization if checkpoint.is_quantized else "none"
    if checkpoint.is_quantized:
        raise ValueError(
            f"quantization must be auto or none for {config.model}, whose weights are quantized "
            f"already, got {config.quantization}: to choose it, take the model in float weights"
        )
    return QuantizingSource(checkpoint, config.quantization), config.quantization


def fingerprint(
    weights_digest: str,
    dtype: torch.dtype,
    kv_cache_dtype: torch.dtype,
    quantization: Quantization,
    device: Device = _CPU,
    *,
    exact: bool = True,
) -> str:
    """Names all that decides the bits of the logits: weights, dtypes, what is done with quantized
    weights, device, instruction set, and the versions of the code that computes them."""
    parts = (
        weights_digest,
        dtype,
        kv_cache_dtype,
        quantization,
        *device.names(),
        "exact" if exact else "inexact",
        ops_digest(),
        __version__,
        torch.__version__,
    )
    return "fp_" + hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:12]


def choose_num_kv_blocks(config: EngineConfig, loaded: LoadedModel, max_num_seqs: int) -> int:
    """How many blocks the KV cache gets.

    Raises:
        ValueError: the memory that it may take holds no block, or the machine has less.
    """
    block_bytes = config.block_size * loaded.config.kv_bytes_per_token(loaded.kv_cache_dtype)
    if config.num_kv_blocks is not None:
        return _check_fits(config.num_kv_blocks, block_bytes, loaded.device)
    kv_cache_bytes = config.kv_cache_bytes
    if kv_cache_bytes is None:
        kv_cache_bytes = loaded.device.default_cache_bytes(config, loaded)
    num_blocks = kv_cache_bytes // block_bytes
    if num_blocks == 0:
        raise ValueError(
            f"kv_cache_bytes must hold at least one block of {block_bytes} bytes, "
            f"got {kv_cache_bytes}"
        )
    most_useful = max_num_seqs * -(-loaded.max_model_len // config.block_size)
    return _check_fits(min(num_blocks, most_useful), block_bytes, loaded.device)


def _check_fits(num_blocks: int, block_bytes: int, device: Device) -> int:
    """The number, if the device has the memory. The system hands out memory that it doesn't have,
    and ends the process in the middle of a request when it is used."""
    total_bytes = device.total_memory_bytes()
    if num_blocks * block_bytes > total_bytes:
        raise ValueError(
            f"the KV cache would take {num_blocks * block_bytes / 2**30:.1f} GiB ({num_blocks} "
            f"blocks of {block_bytes} bytes), but the machine has {total_bytes / 2**30:.1f} GiB: "
            "lower num_kv_blocks or kv_cache_bytes"
        )
    return num_blocks
