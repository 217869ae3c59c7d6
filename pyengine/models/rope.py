"""Rotary position embeddings: the table of cosines and sines (Su et al. 2021)."""

import math
from typing import Any

import torch
from torch import Tensor

from pyengine.errors import ModelLoadError
from pyengine.models.fields import positive_number


def rope_table(
    head_size: int,
    max_positions: int,
    theta: float,
    scaling: dict[str, Any] | None,
    divisors: Tensor | None = None,
) -> Tensor:
    """The angles of every position, as the op rope_and_cache takes them.

    Args:
        scaling: rope_scaling of config.json: rope_type "linear" or "llama3", or None.
        divisors: of the frequencies, float32 [head_size / 2]: how GGUF files say "llama3".

    Returns:
        float32 [max_positions, head_size]: cosines in the first half of a row, sines in the other.

    Raises:
        ModelLoadError: an unknown kind of scaling, or one without its factors.
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    frequencies = 1.0 / (theta**exponents)
    if divisors is not None:
        frequencies = frequencies / divisors
    if scaling is not None:
        frequencies = _scale(frequencies, scaling)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _scale(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    kind = scaling["rope_type"]
    if kind == "linear":
        return frequencies / positive_number(scaling, "factor")
    if kind == "llama3":
        return _scale_llama3(frequencies, scaling)
    raise ModelLoadError(
        f"config.json: rope_scaling type {kind!r} is not supported, only linear and llama3 are"
    )


def _scale_llama3(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Llama 3.1: long waves are stretched by the factor, short ones stay, with a smooth
    transition between (Llama 3 model card)."""
    factor = positive_number(scaling, "factor")
    low = positive_number(scaling, "low_freq_factor")
    high = positive_number(scaling, "high_freq_factor")
    original_length = positive_number(scaling, "original_max_position_embeddings")
    if low >= high:
        raise ModelLoadError(
            f"config.json: low_freq_factor ({low:g}) must be below high_freq_factor ({high:g})"
        )
    wavelengths = 2 * math.pi / frequencies
    smooth = ((original_length / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies
