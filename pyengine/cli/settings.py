"""Options from a YAML file and from the environment, for those that no flag sets.

Each flag `--max-num-seqs` is `max_num_seqs` (or `max-num-seqs`) in the file and
PYENGINE_MAX_NUM_SEQS in the environment. The command line goes before the environment, that before
the file, and that before the default.
"""

import argparse
import dataclasses
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pyengine.cli.options import Setting, UsageError, flag_of, parse_bytes

PREFIX = "PYENGINE_"

_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_BOOLEANS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


def read_settings(
    classes: Sequence[type],
    path: str | None,
    environ: Mapping[str, str],
    *,
    exclude: Collection[str] = (),
) -> dict[str, Setting]:
    """What the file and the environment set, by field.

    Args:
        classes: the dataclasses whose fields may be set.
        path: of the YAML file; None if there is none.
        exclude: names of fields that can't be set so.

    Raises:
        UsageError: the file can't be read, holds a key that is no option, or a value is of the
            wrong type; the message names it.
    """
    fields: dict[str, tuple[dataclasses.Field[Any], Any]] = {}  # by key, with the type
    for cls in classes:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if field.name in exclude:
                continue
            key = flag_of(field).removeprefix("--").replace("-", "_")
            fields[key] = (field, hints[field.name])
    settings = {}
    for name, value in ({} if path is None else _read_yaml(path)).items():
        source = f"{path}: {name}"
        key = str(name).replace("-", "_")
        if key not in fields:
            raise UsageError(f"{source} is no option")
        field, hint = fields[key]
        settings[field.name] = Setting(_convert(field.name, hint, value, source), source)
    for key, (field, hint) in fields.items():
        source = PREFIX + key.upper()
        if source in environ:
            value = _convert(field.name, hint, environ[source], source, is_text=True)
            settings[field.name] = Setting(value, source)
    return settings


def _read_yaml(path: str) -> dict[Any, Any]:
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} can't be read: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold options, each as name: value")
    return data


def _convert(name: str, hint: Any, value: Any, source: str, *, is_text: bool = False) -> object:
    """A setting as its field's type. Text comes from the environment: lists have commas there.

    Raises:
        UsageError: it isn't of that type. The value stays out of the message: it may be a key.
    """
    kinds = set(typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,))
    if value is None and types.NoneType in kinds:
        return None
    (kind,) = kinds - {types.NoneType}
    if typing.get_origin(kind) is tuple:
        if isinstance(value, str):
            value = value.split(",") if is_text else [value]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{source} must be a string or a list of strings")
        return tuple(value)
    if name.endswith("_bytes") and isinstance(value, str):
        try:
            return parse_bytes(value)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{source}: {error}") from error
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise UsageError(f"{source} must be one of {', '.join(map(str, choices))}")
        return value
    if is_text and kind is not str:
        value = _parse(kind, value)
    if isinstance(value, int) and not isinstance(value, bool) and kind is float:
        value = float(value)
    if type(value) is not kind:
        raise UsageError(f"{source} must be {_WORDS[kind]}")
    return value


def _parse(kind: type, text: str) -> object:
    """Text as a value of a type, or itself if it isn't one."""
    if kind is bool:
        return _BOOLEANS.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text
