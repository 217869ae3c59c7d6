"""Where one output is in its grammar."""

from collections.abc import Iterable

from llguidance import LLMatcher


class GrammarMatcher:
    """Follows one sequence through its grammar. Its state depends on the tokens accepted alone.
    Owned by the engine's thread.

    Args:
        matcher: llguidance's, at the beginning of the grammar; it belongs to this object.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed_tokens(self, avoided: Iterable[int] = ()) -> bytes:
        """The tokens that may come next: a bit for each id of the vocabulary, the lowest of a byte
        first, filled up with zeros to a multiple of 32. End-of-sequence tokens are among them
        exactly when the output so far is complete. There is always at least one token.

        Args:
            avoided: tokens to leave out, unless the grammar allows no other.
        """
        allowed = self._matcher.compute_bitmask()
        fewer = bytearray(allowed)
        for token_id in avoided:
            fewer[token_id // 8] &= ~(1 << token_id % 8)
        return bytes(fewer) if any(fewer) else allowed

    def accept(self, token_id: int) -> None:
        """Goes on by a token.

        Raises:
            RuntimeError: it isn't allowed here, or following the grammar has taken more memory or
                time than llguidance allows for a token.
        """
        # An error while the allowed tokens were found shows here: it ends this sequence alone.
        if self._matcher.is_error() or not self._matcher.consume_token(token_id):
            reason = self._matcher.get_error().partition("\n")[0]
            raise RuntimeError(f"the grammar cannot be followed: {reason}")

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete and nothing may follow."""
        return self._matcher.is_stopped()
