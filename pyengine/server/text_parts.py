"""The contents of messages: text, or parts of it."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationInfo


def parse_text(value: Any, info: ValidationInfo, kinds: Mapping[str, Collection[str]]) -> str:
    """A string, or a list of text parts -> the text; parts are joined by line ends.

    Args:
        info: its context takes unknown keys of parts, as those of bodies (see body.Body).
        kinds: the types that a part may be of, each with the keys it may have besides its type and
            its text.

    Raises:
        ValueError: it is something else; the message names the part.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"part {index} must be an object with a type")
        if part["type"] not in kinds:
            expected = " or ".join(map(repr, kinds))
            raise ValueError(
                f"part {index} is of type {part['type'][:40]!r}; only {expected} is supported: no "
                "images, audio or files"
            )
        if not isinstance(part.get("text"), str):
            raise ValueError(f"part {index} must hold a type and a text")
        for key in part.keys() - {"type", "text"} - set(kinds[part["type"]]):
            if info.context is None:
                raise ValueError(f"part {index} holds an unknown field: {key[:100]}")
            info.context.ignore(key)
        texts.append(part["text"])
    return "\n".join(texts)
