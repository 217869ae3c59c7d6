"""Reading the small files of a model folder."""

import json
from pathlib import Path
from typing import Any

from pyengine.errors import ModelLoadError


def read_text(path: Path) -> str:
    """A file's text, in UTF-8.

    Raises:
        ModelLoadError: it is missing, or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path.parent}: there is no {path.name}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: can't be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object.

    Raises:
        ModelLoadError: it is missing, or not a JSON object.
    """
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ModelLoadError(f"{path}: broken JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The same, and {} if there is no such file."""
    return read_json(path) if path.exists() else {}
