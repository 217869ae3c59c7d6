"""Where one output is in its grammar."""

from collections.abc import Iterable

from llguidance import LLMatcher

from pyengine.structured.limits import find_excess


class GrammarMatcher:
    """Follows one sequence through its grammar. Its state depends on the tokens accepted alone.
    Owned by the engine's thread.

    Args:
        matcher: llguidance's, at the beginning of the grammar; it belongs to this object.
        first_allowed: the mask of the first token.
        param: the field that the grammar came from, which errors name.
    """

    def __init__(self, matcher: LLMatcher, first_allowed: bytes, param: str) -> None:
        self._matcher = matcher
        self._allowed: bytes | None = first_allowed  # what may come next, once that is known
        self._param = param

    def allowed_tokens(self, avoided: Iterable[int] = ()) -> bytes:
        """The tokens that may come next: a bit for each id of the vocabulary, the lowest of a byte
        first, filled up with zeros to a multiple of 32. End-of-sequence tokens are among them
        exactly when the output so far is complete. There is always at least one token.

        Args:
            avoided: tokens to leave out, unless the grammar allows no other.
        """
        if self._allowed is None:
            self._allowed = self._matcher.compute_bitmask()
        fewer = bytearray(self._allowed)
        for token_id in avoided:
            fewer[token_id // 8] &= ~(1 << token_id % 8)
        return bytes(fewer) if any(fewer) else self._allowed

    def accept(self, token_id: int) -> None:
        """Goes on by a token.

        Raises:
            GrammarTooComplexError: finding the allowed tokens or going on has taken more than
                limits.py allows.
            RuntimeError: the token isn't allowed here.
        """
        self._allowed = None
        # An error while the allowed tokens were found shows here: it ends this request alone.
        if self._matcher.is_error() or not self._matcher.consume_token(token_id):
            reason = self._matcher.get_error().partition("\n")[0]
            unforeseen = RuntimeError(f"the grammar cannot be followed: {reason}")
            raise find_excess(reason, self._param) or unforeseen

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete and nothing may follow."""
        return self._matcher.is_stopped()
