"""Random JSON schemas of many kinds, whose values have bounded lengths."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

KEYS = ["a", "name", "größe", "名前", 'quo"te', "back\\slash", "🦜", "with space", "$id", "ünï"]
PATTERNS = ["^[A-Z]{2}-[0-9]{3}$", "^(ja|nein)+$", "^a.?c$", "^\\d+\\.\\d{2}$", "^[äöü]{1,3}$"]
FORMATS = ["date", "uuid", "ipv4", "time"]
CONSTANTS: list[Any] = [None, True, 0, -1.5, "", 'x"\\\n', "é", [1, "a"], {"k": [None]}, "🦜"]


class SchemaGenerator:
    """Draws schemas; the same seed gives the same."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._definitions: dict[str, Schema] = {}

    def draw(self) -> Schema:
        """A whole schema; its definitions may refer to themselves."""
        self._definitions = {}
        schema = self._schema(3)
        if self._definitions:
            schema = {"$defs": self._definitions, **schema}
        return schema

    def _schema(self, depth: int) -> Schema:
        leaves: list[Callable[[int], Schema]] = [
            self._string, self._pattern, self._format, self._integer, self._number,
            self._multiple, self._enum, self._const, self._plain, self._nullable,
        ]  # fmt: skip
        branches = [self._object, self._object, self._array, self._tuple, self._any_of, self._ref]
        if depth == 3 or (depth > 0 and self._rng.random() < 0.5):
            return self._rng.choice(branches)(depth - 1)
        return self._rng.choice(leaves)(depth)

    def _string(self, depth: int) -> Schema:
        low = self._rng.randrange(4)
        return {"type": "string", "minLength": low, "maxLength": low + self._rng.randrange(8)}

    def _pattern(self, depth: int) -> Schema:
        return {"type": "string", "pattern": self._rng.choice(PATTERNS)}

    def _format(self, depth: int) -> Schema:
        return {"type": "string", "format": self._rng.choice(FORMATS)}

    def _integer(self, depth: int) -> Schema:
        low = self._rng.randrange(-150, 150)
        kind = self._rng.choice(["minimum", "exclusiveMinimum"])
        return {"type": "integer", kind: low, "maximum": low + self._rng.randrange(1, 1200)}

    def _number(self, depth: int) -> Schema:
        low = round(self._rng.uniform(-20, 20), 2)
        kind = self._rng.choice(["maximum", "exclusiveMaximum"])
        return {"type": "number", "minimum": low, kind: low + self._rng.choice([1, 2.5, 70])}

    def _multiple(self, depth: int) -> Schema:
        return {"type": "integer", "multipleOf": self._rng.randrange(2, 12), "maximum": 5000}

    def _enum(self, depth: int) -> Schema:
        return {"enum": self._rng.sample(CONSTANTS, self._rng.randrange(1, 6))}

    def _const(self, depth: int) -> Schema:
        return {"const": self._rng.choice(CONSTANTS)}

    def _plain(self, depth: int) -> Schema:
        return {"type": self._rng.choice(["boolean", "null", "integer", "number"])}

    def _nullable(self, depth: int) -> Schema:
        return {"type": ["string", "null"], "maxLength": 5, "description": "is ignored"}

    def _object(self, depth: int) -> Schema:
        keys = self._rng.sample(KEYS, self._rng.randrange(1, 5))
        schema: Schema = {
            "type": "object",
            "properties": {key: self._schema(depth) for key in keys},
            "required": [key for key in keys if self._rng.random() < 0.6],
            "additionalProperties": False,
        }
        if self._rng.random() < 0.2:
            schema["patternProperties"] = {"^x[0-9]$": self._schema(0)}
        return schema

    def _array(self, depth: int) -> Schema:
        low = self._rng.randrange(3)
        return {
            "type": "array",
            "items": self._schema(depth),
            "minItems": low,
            "maxItems": low + self._rng.randrange(3),
        }

    def _tuple(self, depth: int) -> Schema:
        size = self._rng.randrange(1, 4)
        return {
            "type": "array",
            "prefixItems": [self._schema(depth) for _ in range(size)],
            "items": False,
            "minItems": self._rng.randrange(size + 1),
        }

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self._schema(depth) for _ in range(self._rng.randrange(2, 4))]}

    def _ref(self, depth: int) -> Schema:
        name = f"d{len(self._definitions)}"
        reference = {"$ref": f"#/$defs/{name}"}
        self._definitions[name] = {}  # takes the name
        self._definitions[name] = {
            "type": "object",
            "properties": {"value": self._schema(depth), "next": {"anyOf": [{}, reference]}},
            "required": ["value"],
            "additionalProperties": False,
        }
        self._definitions[name]["properties"]["next"]["anyOf"][0] = {"type": "null"}
        return reference
