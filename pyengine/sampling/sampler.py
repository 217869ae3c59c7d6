"""One batched draw of a token for each sequence that reached its end."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyengine import ops
from pyengine.outputs import TokenLogprobs


@dataclass
class PenaltyInputs:
    """The histories that penalties look at; row r has token_ids[token_start_loc[r]:...[r + 1]]."""

    token_ids: Tensor  # int64 [sum of lengths]: prompt and output
    token_start_loc: Tensor  # int32 [R + 1]
    num_prompt_tokens: Tensor  # int32 [R]
    repetition: Tensor  # float32 [R]
    presence: Tensor  # float32 [R]
    frequency: Tensor  # float32 [R]


@dataclass
class LogitBiases:
    """B numbers to add to logits, each row and token at most once."""

    rows: Tensor  # int64 [B]
    token_ids: Tensor  # int64 [B]
    values: Tensor  # float32 [B]


@dataclass
class DrawSettings:
    """What a request says about each of R draws."""

    temperature: Tensor  # float32 [R], 0: greedy
    top_k: Tensor  # int32 [R], <= 0: all
    top_p: Tensor  # float32 [R]
    min_p: Tensor  # float32 [R]
    seeds: Tensor  # int64 [R]
    num_logprobs: list[int | None]  # per row; None: not asked for
    biases: LogitBiases | None  # None: no row has any


@dataclass
class SamplingInputs:
    """How to draw for each of R rows. A row's draw depends on its own entries alone."""

    settings: DrawSettings
    output_indices: Tensor  # int64 [R]: how many tokens were generated before this one
    penalties: PenaltyInputs | None  # None: no row has any
    # (row, token ids) that may not be drawn: those that end a sequence below min_tokens.
    banned: list[tuple[int, list[int]]]
    # (row, bool [V]), true for the tokens that the row's grammar doesn't allow.
    forbidden: list[tuple[int, NDArray[np.bool_]]]


@dataclass
class SampledTokens:
    """What was drawn, row by row."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]


def sample(logits: Tensor, inputs: SamplingInputs) -> SampledTokens:
    """Draws a token for each row of `logits` (float32 [R, V], overwritten).

    Log-probabilities are those of the model: before penalties, biases, grammars,
    temperature and filters.
    """
    settings = inputs.settings
    wants_logprobs = any(n is not None for n in settings.num_logprobs)
    biases = settings.biases
    changes_logits = bool(
        inputs.penalties is not None or biases is not None or inputs.banned or inputs.forbidden
    )
    original = logits.clone() if wants_logprobs and changes_logits else logits
    if inputs.penalties is not None:
        p = inputs.penalties
        ops.apply_penalties_(
            logits,
            p.token_ids,
            p.token_start_loc,
            p.num_prompt_tokens,
            p.repetition,
            p.presence,
            p.frequency,
        )
    if biases is not None:
        logits[biases.rows, biases.token_ids] += biases.values
    for row, token_ids in inputs.banned:
        logits[row, token_ids] = -torch.inf
    for row, is_forbidden in inputs.forbidden:
        # All bits set is a NaN, which is drawn as -inf is: never. Two passes of NumPy's are faster
        # than a conditional copy, and than PyTorch, which would share them out to threads.
        bits = logits[row].numpy().view(np.int32)
        np.bitwise_or(bits, -is_forbidden.view(np.int8), out=bits)
    chosen = ops.sample(
        logits,
        settings.temperature,
        settings.top_k,
        settings.top_p,
        settings.min_p,
        settings.seeds,
        inputs.output_indices,
    )
    logprobs: list[TokenLogprobs | None] = [None] * len(settings.num_logprobs)
    if wants_logprobs:
        rows = [r for r, n in enumerate(settings.num_logprobs) if n is not None]
        num_top = [n for n in settings.num_logprobs if n is not None]
        for row, logprob in zip(
            rows, token_logprobs(original[rows], chosen[rows], num_top), strict=True
        ):
            logprobs[row] = logprob
    return SampledTokens(chosen.tolist(), logprobs)


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: list[int]) -> list[TokenLogprobs]:
    """The log-probability of one token per row, and of the `num_top[r]` likeliest.

    Args:
        logits: float32 [R, V].
        token_ids: int64 [R].
    """
    logprob, rank, top_ids, top_logprobs = ops.token_logprobs(logits, token_ids, max(num_top))
    return [
        TokenLogprobs(token_id, value, place, ids[:n], values[:n])
        for token_id, value, place, ids, values, n in zip(
            token_ids.tolist(),
            logprob.tolist(),
            rank.tolist(),
            top_ids.tolist(),
            top_logprobs.tolist(),
            num_top,
            strict=True,
        )
    ]
