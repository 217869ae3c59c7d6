"""From logits to a token."""

import torch
from torch import Tensor

from pyengine.ops.library import ops


def apply_penalties_(
    logits: Tensor,
    token_ids: Tensor,
    token_start_loc: Tensor,
    num_prompt_tokens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Penalizes the tokens of each row's history, in place.

    Once for each distinct token of prompt and output, a positive logit is divided by the
    repetition penalty and another one multiplied by it (Keskar et al. 2019). Then, for tokens of
    the output, frequency times their count and presence are subtracted.

    Args:
        logits: float32 [R, V], mutated.
        token_ids: int64 [sum of lengths], the histories one after the other: prompt, then output.
        token_start_loc: int32 [R + 1], where each row's history begins.
        num_prompt_tokens: int32 [R], how many tokens of each history are the prompt's.
        repetition: float32 [R]; 1 is off.
        presence: float32 [R]; 0 is off.
        frequency: float32 [R]; 0 is off.
    """
    ops.apply_penalties_(
        logits, token_ids, token_start_loc, num_prompt_tokens, repetition, presence, frequency
    )


@torch.library.register_fake("pyengine::apply_penalties_")
def _(
    logits: Tensor,
    token_ids: Tensor,
    token_start_loc: Tensor,
    num_prompt_tokens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    return None


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    output_indices: Tensor,
) -> Tensor:
    """One token id per row. A row's token is a function of that row's arguments alone.

    Filters apply to softmax(logits / temperature) in this order: min-p keeps tokens at least
    min_p times as likely as the likeliest; top-k keeps the k likeliest; top-p keeps the fewest
    likeliest tokens that hold at least top_p of what remains, always at least one. Ties go to the
    lowest ids. The draw inverts the distribution, in the order of ids, at a uniform number from
    Philox4x32-10 (Salmon et al. 2011) with the seed as key and the output index as counter.

    NaN counts as -inf. A row with a +inf, or with nothing above -inf, is sampled greedily.

    Args:
        logits: float32 [R, V].
        temperature: float32 [R]; 0 is greedy.
        top_k: int32 [R]; 0 or less is off.
        top_p: float32 [R]; 1 is off.
        min_p: float32 [R]; 0 is off.
        seeds: int64 [R].
        output_indices: int64 [R], how many tokens the sequence has generated before this one.

    Returns:
        int64 [R].
    """
    return ops.sample(logits, temperature, top_k, top_p, min_p, seeds, output_indices)


@torch.library.register_fake("pyengine::sample")
def _(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    output_indices: Tensor,
) -> Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.int64)


def token_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities of one token per row, and of the likeliest tokens.

    NaN counts as -inf. A row with a +inf, or with nothing above -inf, has log-probabilities NaN.

    Args:
        logits: float32 [R, V].
        token_ids: int64 [R].
        num_top: how many of the likeliest tokens to report, 0 to V.

    Returns:
        logprob: float32 [R], the log-softmax of the logits at token_ids.
        rank: int32 [R], 1 + the number of tokens with a greater logit.
        top_ids: int64 [R, num_top], likeliest first, ties by ascending id.
        top_logprobs: float32 [R, num_top].
    """
    return ops.token_logprobs(logits, token_ids, num_top)


@torch.library.register_fake("pyengine::token_logprobs")
def _(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = logits.shape[0]
    return (
        logits.new_empty(rows),
        logits.new_empty(rows, dtype=torch.int32),
        logits.new_empty(rows, num_top, dtype=torch.int64),
        logits.new_empty(rows, num_top),
    )
