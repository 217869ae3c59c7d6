"""Grammars in Lark's notation, checked before they are compiled."""

import json
import re
from typing import Any

from pyengine.structured.schema import Costs, normalize

# What may hold anything, and so is skipped; and what a JSON value follows.
_TOKEN = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*"       # string
  | (?:\#|//)[^\n]*           # comment
  | /(?:\\.|[^/\\])+/         # regex
  | <[^<>\s]+>                # special token
  | %(?P<json>json|regex|llguidance)\b\s*
    """,
    re.VERBOSE | re.DOTALL,
)
# Those of a rule: its name stands before them, a colon behind.
_ATTRIBUTES = re.compile(r"[\w-]\s*\[([^\]]*)\]\s*:")
# Attribute without effect -> what to do instead.
_USELESS = {
    "capture": "captures aren't reported: leave it out",
    "stop_capture": "captures aren't reported: leave it out",
    "stop": "what it matches isn't hidden from the output: use suffix",
    "temperature": "use the request's temperature",
}
_OPTIONS = {"allow_initial_skip"}


def normalize_lark(text: str) -> str:
    """The same grammar with the schemas in it as llguidance reads them; see schema.py.

    Raises:
        ValueError: it asks for what has no effect here, or a schema in it is wrong.
        RecursionError: a schema in it is too deep.
    """
    costs = Costs()
    decoder = json.JSONDecoder(object_hook=costs.add)
    pieces: list[str] = []
    skeleton: list[str] = []  # the text without what may hold anything
    end = 0
    while match := _TOKEN.search(text, end):
        between = text[end : match.start()]
        end = match.end()
        written = match.group()
        if match["json"] is not None:
            value, end = _decode(decoder, text, match)
            written += _rewrite(match["json"], value) or text[match.end() : end]
        pieces += between, written
        skeleton += between, " "
    costs.check()
    skeleton.append(text[end:])
    _check_attributes("".join(skeleton))
    return "".join([*pieces, text[end:]])


def _decode(decoder: json.JSONDecoder, text: str, match: re.Match[str]) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text, match.end())
    except json.JSONDecodeError as error:
        raise ValueError(f"what follows %{match['json']} isn't JSON: {error}") from None


def _rewrite(kind: str, value: Any) -> str | None:
    """What to write instead of the value that follows a keyword; None: the same."""
    match kind:
        case "json":
            guidance = value.get("x-guidance") if isinstance(value, dict) else None
            if isinstance(guidance, dict) and guidance.get("lenient"):
                raise ValueError("x-guidance: lenient isn't supported, as it ignores keywords")
            return normalize(value)
        case "llguidance":
            for name in value if isinstance(value, dict) else ():
                if name not in _OPTIONS:
                    raise ValueError(f"%llguidance: {name} isn't supported: leave it out")
    return None


def _check_attributes(skeleton: str) -> None:
    for attributes in _ATTRIBUTES.findall(skeleton):
        for attribute in attributes.split(","):
            name = attribute.partition("=")[0].strip()
            if name in _USELESS:
                raise ValueError(f"the attribute {name} has no effect: {_USELESS[name]}")
