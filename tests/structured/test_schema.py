"""Schemas are read as JSON Schema has them."""

import json
from typing import Any

import pytest

from pyengine.structured.schema import normalize_schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "integer", "pattern": 5}, "schema.pattern must be a string, got 5"),
        ({"type": "string", "required": True}, "schema.required must be a list of strings"),
        ({"properties": {"a": {"type": "zip"}}}, "schema.properties.a.type must be one of array,"),
        ({"$defs": {"a": {"maxLength": -1}}}, "schema.$defs.a.maxLength must be a non-negative"),
        ({"anyOf": [{}, {"minItems": 1.5}]}, "schema.anyOf[1].minItems must be a non-negative"),
        ({"minLength": True}, "schema.minLength must be a non-negative integer, got true"),
        ({"items": [{"multipleOf": 0}]}, "schema.items[0].multipleOf must be a number above 0"),
        ({"items": {"maximum": "9"}}, 'schema.items.maximum must be a number, got "9"'),
        ({"uniqueItems": 0}, "schema.uniqueItems must be true or false, got 0"),
        ({"properties": [1]}, "schema.properties must be an object of schemas, got [1]"),
        ({"allOf": {}}, "schema.allOf must be a list of schemas, got {}"),
        ({"additionalProperties": None}, "schema.additionalProperties must be a schema"),
        ({"enum": "ab"}, 'schema.enum must be a list, got "ab"'),
    ],
)
def test_a_keyword_of_the_wrong_kind_is_refused_even_where_it_does_not_apply(
    schema: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        normalize_schema(json.dumps(schema))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "normal"),
    [
        ({"minLength": 1.0}, '{"minLength": 1}'),
        ({"type": "array", "uniqueItems": False}, '{"type": "array"}'),
        ({"uniqueItems": True}, '{"uniqueItems": true}'),
        ({"maximum": 1.0, "multipleOf": 0.5}, '{"maximum": 1.0, "multipleOf": 0.5}'),
        ({"exclusiveMinimum": True}, '{"exclusiveMinimum": true}'),
        ({"properties": {"b": {}, "a": True}}, '{"properties": {"b": {}, "a": true}}'),
    ],
)
def test_what_says_the_same_is_the_same(schema: dict[str, Any], normal: str) -> None:
    assert normalize_schema(json.dumps(schema)) == normal


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"uniqueItems": False, "minLength": 1.0}},
        {"enum": [{"pattern": 5}]},
        {"default": {"type": 5}, "examples": [{"items": 3}]},
        {"properties": {"pattern": {}, "required": {}, "uniqueItems": False}},
        {"x-mine": {"type": 5}},
    ],
)
def test_values_and_names_are_no_keywords(schema: dict[str, Any]) -> None:
    assert normalize_schema(json.dumps(schema)) == json.dumps(schema)
