"""Keeps the names of special tokens in the words of messages apart from a chat template's own.

A message may say "<|im_end|>". To the model that is text, and not the end of the message; but once
a template has put messages and special tokens into one text, the two look the same. So the names in
the messages are marked before, and the marks taken out afterwards.
"""

import re
import secrets
from collections.abc import Iterable
from typing import Any


def any_of(names: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of these names, the longest that fits; None if there are none."""
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


class Quoter:
    """Marks names in texts. The mark is drawn, so that no text can hold it: digits, which templates
    pass on as they are, whatever they do to letters and punctuation.

    Args:
        names: matches the names, None if there are none.

    Attributes:
        has_quoted: whether there was a name in what was quoted so far.
    """

    def __init__(self, names: re.Pattern[str] | None) -> None:
        self.has_quoted = False
        self._mark = f"{secrets.randbelow(10**24):024}"
        self._names = names
        if names is not None:
            # At each place where a name begins, as they may overlap: its first character.
            self._beginnings = re.compile(f"(?={names.pattern}).", re.DOTALL)
            self._unquoted = re.compile(f"(?:{names.pattern})(?!{self._mark})")

    def quote(self, value: Any) -> Any:
        """The value with each name in its texts, at any depth, marked after its first character;
        in keys too, as those of a tool's arguments are anybody's."""
        if isinstance(value, str):
            return self._quote_text(value)
        if isinstance(value, list):
            return [self.quote(item) for item in value]
        if isinstance(value, dict):
            return {self.quote(key): self.quote(item) for key, item in value.items()}
        return value

    def unquote(self, text: str) -> str:
        """The text without the marks."""
        return text.replace(self._mark, "")

    def split(self, text: str) -> list[str]:
        """The text without the marks, cut at the names that had none: text, name, text, ..."""
        assert self._names is not None, "only names can have been quoted"
        pieces = []
        end = 0
        for match in self._unquoted.finditer(text):
            pieces += [self.unquote(text[end : match.start()]), match.group()]
            end = match.end()
        return [*pieces, self.unquote(text[end:])]

    def _quote_text(self, text: str) -> str:
        if self._names is None or not self._names.search(text):
            return text
        self.has_quoted = True
        return self._beginnings.sub(lambda match: match.group() + self._mark, text)
