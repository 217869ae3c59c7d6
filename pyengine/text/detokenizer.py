"""Generated tokens to text, as they come: whole characters, and nothing past a stop string."""

import codecs
from collections.abc import Sequence

from pyengine.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one sequence, token by token.

    What push() and flush() return, joined, is the bytes of all tokens decoded as a whole: a token
    may end within a character, whose text then comes with the token that completes it.

    Args:
        tokenizer: gives the bytes of each token.
        skip_special_tokens: special tokens add no text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; may be empty."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """The end of the text: U+FFFD if a character was left unfinished, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopStringMatcher:
    """Cuts a text that comes in pieces at the first stop string.

    The first is the one that is complete first, as if the text came character by character, and of
    those that end together the longest. So the result doesn't depend on how the text was cut up.

    Args:
        stop: the stop strings, none of them empty.
        include_stop: the stop string itself is part of the text.

    Attributes:
        matched: the stop string that ended the text, or None.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool) -> None:
        self.matched: str | None = None
        self._include_stop = include_stop
        self._searches = [_Search(pattern) for pattern in stop]
        self._held = ""

    def push(self, text: str) -> str:
        """What is now known to come before a stop string.

        Held back is the longest end of the text that a stop string could begin with; once a stop
        string matched, everything.
        """
        if self.matched is not None:
            return ""
        if not self._searches:
            return text
        pending = self._held + text
        ends = [(end, search) for search in self._searches if (end := search.push(text)) > 0]
        if not ends:
            num_held = max(search.num_matched for search in self._searches)
            self._held = pending[len(pending) - num_held :]
            return pending[: len(pending) - num_held]
        end, search = min(ends, key=lambda found: (found[0], -len(found[1].pattern)))
        self.matched = search.pattern
        end += len(self._held)
        self._held = ""
        return pending[: end if self._include_stop else end - len(search.pattern)]

    def flush(self) -> str:
        """The end of the text, where no stop string came: what was held back."""
        held, self._held = self._held, ""
        return held


class _Search:
    """Finds a pattern in a text that comes in pieces, in time linear in the text (Knuth, Morris
    and Pratt 1977).

    Attributes:
        num_matched: the length of the longest end of the text that the pattern begins with.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.num_matched = 0
        # borders[n]: the longest proper prefix of pattern[:n] that is also its suffix.
        self._borders = [0, 0]
        for character in pattern[1:]:
            self._borders.append(self._next(self._borders[-1], character))

    def push(self, text: str) -> int:
        """How much of this piece it takes to complete the pattern; 0 if it isn't complete."""
        if self.num_matched == 0 and self.pattern[0] not in text:
            return 0
        for index, character in enumerate(text):
            self.num_matched = self._next(self.num_matched, character)
            if self.num_matched == len(self.pattern):
                return index + 1
        return 0

    def _next(self, num_matched: int, character: str) -> int:
        while num_matched > 0 and self.pattern[num_matched] != character:
            num_matched = self._borders[num_matched]
        return num_matched + (self.pattern[num_matched] == character)
