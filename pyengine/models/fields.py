"""Reads the fields of config.json, which anyone may have written."""

import math
from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError


def positive_int(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """fields[name]; a field that is null counts as left out.

    Raises:
        ModelLoadError: it is no positive integer, or is missing without a default.
    """
    value = _required(fields, name, default)
    if type(value) is not int or value < 1:
        raise _wrong(name, "a positive integer", value)
    return value


def positive_number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """As `positive_int`, for a finite number."""
    value = _required(fields, name, default)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise _wrong(name, "a positive number", value)
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(name, "a positive number", value) from error


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """As `positive_int`, for true or false, by default false."""
    value = _required(fields, name, False)
    if type(value) is not bool:
        raise _wrong(name, "true or false", value)
    return value


def mapping(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """As `positive_int`, for an object, by default an empty one."""
    value = _required(fields, name, {})
    if not isinstance(value, dict):
        raise _wrong(name, "an object", value)
    return value


def _required(fields: Mapping[str, Any], name: str, default: Any) -> Any:
    value = fields.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelLoadError(f"config.json: {name} is missing")
    return value


def _wrong(name: str, expected: str, value: Any) -> ModelLoadError:
    return ModelLoadError(f"config.json: {name} must be {expected}, got {value!r:.100}")
