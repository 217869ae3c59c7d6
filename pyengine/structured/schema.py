"""JSON schemas, checked before they are compiled.

llguidance reads a keyword only where it applies, and some values in a narrower sense than JSON
Schema. Validating against the metaschema would name less and take the GIL for 0.3 s at 100,000
characters (jsonschema 4.26); the shape of every keyword is in a table instead.
"""

import json
from collections.abc import Callable
from fractions import Fraction
from math import isfinite, lcm
from typing import Any

from pyengine.sampling_params import MAX_REGEX_CHARS

MAX_COMMON_MULTIPLE = 100_000

_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


def normalize_schema(text: str) -> str:
    """The same schema as llguidance reads it: counts such as 1.0 are written as integers, and
    `uniqueItems: false`, which says nothing, is left out.

    Raises:
        ValueError: it isn't JSON, a keyword has a value of the wrong kind, or it costs too much;
            the message tells where.
        RecursionError: it is too deep.
    """
    costs = Costs()
    schema = json.loads(text, object_hook=costs.add)
    costs.check()
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be an object, got {_shown(schema)}")
    if "x-guidance" in schema:
        raise ValueError("x-guidance isn't supported: leave it out")
    return normalize(schema)


def normalize(schema: Any) -> str:
    """normalize_schema for a schema that is read already. It may be changed."""
    _visit(schema, "schema")
    return json.dumps(schema)


class Costs:
    """Bounds what nothing else does. Several multipleOf for one number are worked out as one
    automaton, with as many states as their least common multiple; patterns are regexes."""

    def __init__(self) -> None:
        self._multiples: set[int] = set()
        self._num_pattern_chars = 0

    def add(self, node: dict[str, Any]) -> dict[str, Any]:
        """Takes any object of a schema: `$ref` may lead to where no keyword does."""
        value = node.get("multipleOf")
        if _is_number(value):
            self._multiples.add(abs(Fraction(str(value)).numerator))
        by_pattern = node.get("patternProperties")
        patterns = [node.get("pattern"), *(by_pattern if isinstance(by_pattern, dict) else ())]
        self._num_pattern_chars += sum(len(p) for p in patterns if isinstance(p, str))
        return node

    def check(self) -> None:
        if self._num_pattern_chars > MAX_REGEX_CHARS:
            raise ValueError(
                f"all pattern and patternProperties together may have at most {MAX_REGEX_CHARS} "
                f"characters, got {self._num_pattern_chars}"
            )
        if len(self._multiples) > 1 and lcm(*self._multiples) > MAX_COMMON_MULTIPLE:
            raise ValueError(
                f"the least common multiple of all multipleOf must be at most {MAX_COMMON_MULTIPLE}"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_bound(value: Any) -> bool:
    return _is_number(value) or isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return all(isinstance(name, str) and name in _TYPES for name in names)


_COUNT = (_is_count, "a non-negative integer")
_NUMBER = (_is_number, "a number")
_BOUND = (_is_bound, "a number")  # true and false are draft 4's
_TEXT = (lambda value: isinstance(value, str), "a string")
# keyword -> what its value must be, where it isn't a schema. Annotations may be anything.
_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _BOUND),
    "multipleOf": (_is_positive, "a number above 0"),
    **dict.fromkeys(("pattern", "format", "$ref", "$id", "$schema", "$anchor"), _TEXT),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "required": (_is_list_of_strings, "a list of strings"),
    "type": (_is_type, f"one of {', '.join(sorted(_TYPES))}, or a list of them"),
}
_ONE_SCHEMA = {
    "additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames",
    "then", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
_LISTS_OF_SCHEMAS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_SCHEMAS_BY_NAME = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}


def _visit(schema: Any, path: str) -> None:
    """Checks and rewrites a schema and those in it."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{path} must be a schema: an object, true or false, got {_shown(schema)}")
    for keyword, value in schema.items():
        here = f"{path}.{keyword}"
        if keyword in _SHAPES:
            is_right, wanted = _SHAPES[keyword]
            if not is_right(value):
                raise ValueError(f"{here} must be {wanted}, got {_shown(value)}")
            if is_right is _is_count:
                schema[keyword] = int(value)
        elif keyword in _ONE_SCHEMA or (keyword == "items" and not isinstance(value, list)):
            _visit(value, here)
        elif keyword in _LISTS_OF_SCHEMAS or keyword == "items":  # a list of items is draft 7's
            if not isinstance(value, list):
                raise ValueError(f"{here} must be a list of schemas, got {_shown(value)}")
            for index, item in enumerate(value):
                _visit(item, f"{here}[{index}]")
        elif keyword in _SCHEMAS_BY_NAME:
            if not isinstance(value, dict):
                raise ValueError(f"{here} must be an object of schemas, got {_shown(value)}")
            for name, item in value.items():
                _visit(item, f"{here}.{name}")
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
