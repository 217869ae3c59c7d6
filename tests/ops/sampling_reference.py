"""Sampling as a slow, plain computation in float64, and the noise as plain integers."""

from dataclasses import dataclass

import numpy as np

_MASK = 0xFFFFFFFF


def philox4x32_10(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds of Philox4x32 (Salmon et al. 2011): 4 words of counter, 2 of key -> 4 words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _MASK, (a >> 32) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return [c0, c1, c2, c3]


def sampling_noise(seed: int, output_index: int) -> float:
    """The uniform number in [0, 1) of one output token."""
    counter = [output_index & _MASK, output_index >> 32 & _MASK, 0, 0]
    words = philox4x32_10(counter, [seed & _MASK, seed >> 32 & _MASK])
    return ((words[1] << 32 | words[0]) >> 11) / 2**53


@dataclass(frozen=True)
class Distribution:
    """What a row is sampled from.

    `margin` is how far every decision of the filters was from falling the other way, relative to
    the number it compared. `error` bounds what float32 arithmetic can shift such a number by.
    """

    token_ids: np.ndarray  # kept tokens, ascending
    probs: np.ndarray  # float64, theirs
    margin: float
    error: float

    def draw(self, noise: float) -> int:
        cumulative = np.cumsum(self.probs)
        index = int(np.searchsorted(cumulative, noise, side="right"))
        return int(self.token_ids[min(max(index, 0), len(self.token_ids) - 1)])


def distribution(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> Distribution:
    """The distribution of a row of finite or -inf logits (NaN is taken as -inf)."""
    x = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    order = np.lexsort((np.arange(len(x)), -x))  # descending, ties by ascending id
    if temperature <= 0:
        return Distribution(order[:1], np.ones(1), 1.0, 0.0)
    with np.errstate(under="ignore"):
        scaled = (x[order] - x[order[0]]) / np.float64(temperature)
        weights = np.exp(scaled)
    # Each weight is off by 2 ulp of exp, and by what rounding its argument twice does to it.
    error = 2.0**-23 * (2 + float(np.max(-scaled[np.isfinite(scaled)])))
    margin = 1.0

    if min_p > 0:
        gaps = np.abs(weights / min_p - 1)
        margin = min(margin, float(np.min(gaps[weights < 1], initial=1.0)))
        weights = weights[weights >= min_p]
    if top_k > 0:
        weights = weights[:top_k]
    weights = weights / weights.sum()
    if top_p < 1:
        sums = np.cumsum(weights)
        margin = min(margin, float(np.min(np.abs(sums / top_p - 1))))
        weights = weights[: int(np.argmax(sums >= top_p)) + 1 if sums[-1] >= top_p else len(sums)]
        weights = weights / weights.sum()
    kept = order[: len(weights)]
    by_id = np.argsort(kept)
    return Distribution(kept[by_id], weights[by_id], margin, error)


def penalized(
    logits: np.ndarray,
    prompt: list[int],
    output: list[int],
    repetition: np.float32,
    presence: np.float32,
    frequency: np.float32,
) -> np.ndarray:
    """A row of float32 logits after the penalties, in float32 and in their documented order."""
    result = logits.copy()
    for token in set(prompt) | set(output):
        value = result[token]
        value = value / repetition if value > 0 else value * repetition
        if token in output:
            value = value - frequency * np.float32(output.count(token)) - presence
        result[token] = value
    return result
