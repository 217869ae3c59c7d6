"""Guesses of the tokens to come, for one step to check several at once."""

import math
from collections.abc import Sequence as Seq

from pyengine._loader import load_core

# So many tokens must have occurred before, in the same order, for a guess of what follows.
_NGRAM_SIZE = 3
# A step costs at least as much as so many rows more: it reads all weights, for one row or for many.
# Measured: 7 to 13 rows; counting less than that leaves a margin for acceptance that falls.
_STEP_COST_IN_ROWS = 4
# The share of guesses that prove right: what is expected at first, and how fast the estimate
# follows what is seen.
_FIRST_ACCEPTANCE = 0.5
_LEARNING_RATE = 1 / 6
_MAX_ACCEPTANCE = 0.98


class Drafter:
    """Looks up what followed in a sequence when its last tokens occurred before (prompt look-up
    decoding; Saxena 2023). Owned by the engine's thread.

    It guesses no more than pays: a guessed token costs a row of the step, and saves a share of
    later steps if it and those before it prove right. How likely that is it learns from every token
    that comes, whether its guess was fed or not.

    Args:
        max_tokens: the most tokens to guess at once.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._index = load_core().NgramIndex(_NGRAM_SIZE)
        self._guess: list[int] = []  # of what comes after the tokens in the index
        self._acceptance = _FIRST_ACCEPTANCE

    def guess(self, token_ids: Seq[int], num_rows: int) -> list[int]:
        """The tokens that may come next, none if no guess pays.

        Args:
            token_ids: the sequence so far; it has only grown since the last call.
            num_rows: how many sequences get a token in this step.
        """
        new = token_ids[self._index.num_tokens :]
        self._learn(new)
        self._index.append(new)
        self._guess = self._index.guess(self._max_tokens)
        return self._guess[: self._num_worthwhile(num_rows)]

    def _learn(self, new: Seq[int]) -> None:
        for guessed, token_id in zip(self._guess, new, strict=False):
            is_right = guessed == token_id
            self._acceptance += (is_right - self._acceptance) * _LEARNING_RATE
            if not is_right:
                break  # the guesses after it were about something else

    def _num_worthwhile(self, num_rows: int) -> int:
        """How many guesses pay. The k-th is right with probability acceptance ** k, and then saves
        a row of a later step and that row's share of what a step costs."""
        needed = num_rows / (num_rows + _STEP_COST_IN_ROWS)
        acceptance = min(self._acceptance, _MAX_ACCEPTANCE)
        if acceptance < needed:
            return 0
        return int(math.log(needed) / math.log(acceptance))
