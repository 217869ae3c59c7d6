"""One batched draw of a token for each sequence that reached its end.

What is computed stays on the device of the logits until `collect()` waits for it: whatever can be
done meanwhile is done before that.
"""

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


@dataclass
class DrawnLogprobs:
    """Log-probabilities of R tokens and of the likeliest, on the device of the logits."""

    token_ids: Tensor  # int64 [R]
    logprobs: Tensor  # float32 [R]
    ranks: Tensor  # int32 [R]
    top_ids: Tensor  # int64 [R, max(num_top)]
    top_logprobs: Tensor  # float32, the same
    num_top: list[int]  # [R]: how many of the likeliest are asked for

    def collect(self) -> list[TokenLogprobs]:
        return [
            TokenLogprobs(token_id, value, place, ids[:n], values[:n])
            for token_id, value, place, ids, values, n in zip(
                self.token_ids.tolist(),
                self.logprobs.tolist(),
                self.ranks.tolist(),
                self.top_ids.tolist(),
                self.top_logprobs.tolist(),
                self.num_top,
                strict=True,
            )
        ]


@dataclass
class DrawnTokens:
    """What was drawn for each of R rows, on the device of the logits."""

    token_ids: Tensor  # int64 [R]
    logprobs: DrawnLogprobs | None
    logprobs_rows: list[int]  # of which they are

    def collect(self) -> SampledTokens:
        token_ids = self.token_ids.tolist()
        logprobs: list[TokenLogprobs | None] = [None] * len(token_ids)
        if self.logprobs is not None:
            for row, logprob in zip(self.logprobs_rows, self.logprobs.collect(), strict=True):
                logprobs[row] = logprob
        return SampledTokens(token_ids, logprobs)


def sample(logits: Tensor, inputs: SamplingInputs) -> DrawnTokens:
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
        _forbid(logits[row], is_forbidden)
    chosen = ops.sample(
        logits,
        settings.temperature,
        settings.top_k,
        settings.top_p,
        settings.min_p,
        settings.seeds,
        inputs.output_indices,
    )
    rows = [r for r, n in enumerate(settings.num_logprobs) if n is not None]
    logprobs = None
    if wants_logprobs:
        num_top = [n for n in settings.num_logprobs if n is not None]
        logprobs = token_logprobs(original[rows], chosen[rows], num_top)
    return DrawnTokens(chosen, logprobs, rows)


def _forbid(logits: Tensor, is_forbidden: NDArray[np.bool_]) -> None:
    """Takes tokens out of a row: all bits set is a NaN, which is drawn as -inf is: never."""
    if logits.device.type != "cpu":
        logits.masked_fill_(torch.from_numpy(is_forbidden).to(logits.device), torch.nan)
        return
    # Two passes of NumPy's are faster than a conditional copy, and than PyTorch, which would share
    # them out to threads.
    bits = logits.numpy().view(np.int32)
    np.bitwise_or(bits, -is_forbidden.view(np.int8), out=bits)


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: list[int]) -> DrawnLogprobs:
    """The log-probability of one token per row, and of the `num_top[r]` likeliest.

    Args:
        logits: float32 [R, V].
        token_ids: int64 [R].
    """
    computed = ops.token_logprobs(logits, token_ids, max(num_top))
    return DrawnLogprobs(token_ids, *computed, num_top)
