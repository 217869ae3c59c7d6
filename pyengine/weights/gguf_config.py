"""A GGUF file's metadata in the terms of Hugging Face's config.json."""

import struct
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.weights.gguf_file import GGUFFile

# general.architecture -> Hugging Face's class of the same computation. Mistral is "llama" here.
_ARCHITECTURES = {"llama": "LlamaForCausalLM"}

# The tensor of Llama 3.1's frequency factors: each inverse rotary frequency is divided by its own.
ROPE_FACTORS = "rope_freqs.weight"

# Files written before there were keys for them name the ends of a turn by their text alone.
_END_OF_TURN_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
CONTROL_TOKEN = 3  # in tokenizer.ggml.token_type


def eos_token_ids(file: GGUFFile) -> list[int]:
    """The tokens that end an answer: end of sequence, of a turn, of a message."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [file.get(f"tokenizer.ggml.{key}", int) for key in keys]
    tokens = file.get_list("tokenizer.ggml.tokens", str) or []
    types = file.get_list("tokenizer.ggml.token_type", int) or []
    for token_id, (token, type_) in enumerate(zip(tokens, types, strict=False)):
        if type_ == CONTROL_TOKEN and token in _END_OF_TURN_TOKENS:
            ids.append(token_id)
    return list(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def to_hf_config(file: GGUFFile) -> dict[str, Any]:
    """What config.json would say of the model in this file.

    Raises:
        ModelLoadError: another architecture than Llama's, a key that is missing or of the wrong
            type, or a variant of the architecture that isn't supported.
    """
    arch = file.require("general.architecture", str)
    if arch not in _ARCHITECTURES:
        raise ModelLoadError(
            f"{file.path}: the architecture {arch!r} isn't supported in GGUF files, only "
            + ", ".join(map(repr, _ARCHITECTURES))
        )
    if file.get("split.count", int, 1) > 1:
        raise ModelLoadError(
            f"{file.path}: this is one part of a model that was split into several files; merge "
            "them into one first (llama.cpp's gguf-split does)"
        )
    if "token_embd.weight" not in file.tensors:
        raise ModelLoadError(f"{file.path}: the tensor token_embd.weight is missing")
    embedding = file.tensors["token_embd.weight"]
    hidden_size = _require_size(file, f"{arch}.embedding_length")
    num_heads = _require_size(file, f"{arch}.attention.head_count")
    head_dim = file.get(f"{arch}.attention.key_length", int) or hidden_size // num_heads
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[arch]],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "float32" if _is_float32(file) else "bfloat16",
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": _require_size(file, f"{arch}.feed_forward_length"),
        "num_hidden_layers": _require_size(file, f"{arch}.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": file.get(f"{arch}.attention.head_count_kv", int, num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": _require_size(file, f"{arch}.context_length"),
        "rms_norm_eps": _shortest(file.require(f"{arch}.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _shortest(file.get(f"{arch}.rope.freq_base", float, 10000.0)),
        "rope_scaling": _rope_scaling(file, arch),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": eos_token_ids(file),
    }
    optional = {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id", int),
        "sliding_window": file.get(f"{arch}.attention.sliding_window", int),
        "rope_freq_factors": ROPE_FACTORS if ROPE_FACTORS in file.tensors else None,
    }
    config.update({key: value for key, value in optional.items() if value is not None})
    rotary_dim = file.get(f"{arch}.rope.dimension_count", int, head_dim)
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    return config


def _require_size(file: GGUFFile, key: str) -> int:
    size = file.require(key, int)
    if size < 1:
        raise ModelLoadError(f"{file.path}: broken GGUF file: {key} must be at least 1, got {size}")
    return size


def _rope_scaling(file: GGUFFile, arch: str) -> dict[str, Any] | None:
    kind = file.get(f"{arch}.rope.scaling.type", str, "none")
    factor = file.get(f"{arch}.rope.scaling.factor", float)
    old_factor = file.get(f"{arch}.rope.scale_linear", float)  # how older files say "linear"
    if kind == "none" and old_factor is not None:
        kind, factor = "linear", old_factor
    if kind == "none" or factor is None:
        return None
    scaling = {"rope_type": kind, "factor": _shortest(factor)}
    original = file.get(f"{arch}.rope.scaling.original_context_length", int)
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _is_float32(file: GGUFFile) -> bool:
    """Whether every matrix is; norms always are."""
    return all(t.type.name == "F32" for t in file.tensors.values() if len(t.shape) > 1)


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05, where the file gave 9.99999974e-06."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == struct.pack("<f", value):
            return float(text)
    return value
