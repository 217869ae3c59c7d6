"""Options from a YAML file and from the environment, for those that no flag sets.

Each flag `--max-num-seqs` is `max_num_seqs` (or `max-num-seqs`) in the file and
PYENGINE_MAX_NUM_SEQS in the environment. The command line goes before the environment, that before
the file, and that before the default.
"""

import argparse
import dataclasses
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyengine.cli.options import Setting, UsageError, flag_of, parse_bytes

PREFIX = "PYENGINE_"


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
    """A setting as its field's type. Text comes from the environment: lists have commas there."""
    from pydantic import TypeAdapter, ValidationError

    if name.endswith("_bytes") and isinstance(value, str):
        try:
            return parse_bytes(value)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{source}: {error}") from error
    if typing.get_origin(hint) is tuple:
        if isinstance(value, str):
            value = value.split(",") if is_text else [value]
        value = tuple(value) if isinstance(value, list) else value
        is_text = False
    try:
        return TypeAdapter(hint).validate_python(value, strict=not is_text)
    except ValidationError as error:
        # The value stays out of the message: it may be a key.
        expected = error.errors(include_url=False)[0]["msg"].removeprefix("Input ")
        expected = expected[0].lower() + expected[1:]
        raise UsageError(f"{source}: {expected}") from error
