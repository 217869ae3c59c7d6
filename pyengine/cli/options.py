"""Flags made from the option dataclasses: name, type, default and help text of each option are
written once, in the dataclass and its docstring.

A flag that is not given leaves no trace in the parsed arguments, so that the dataclass fills in its
own default.
"""

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

Options = TypeVar("Options")
_NOTHING: Mapping[str, object] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value that isn't from the command line, and where it is from, as a user would name it."""

    value: object
    source: str


_NO_SETTINGS: Mapping[str, Setting] = types.MappingProxyType({})


class UsageError(Exception):
    """The command line can't be carried out as it is."""


def add_options(
    parser: argparse.ArgumentParser,
    title: str,
    cls: type,
    *,
    only: Collection[str] | None = None,
    exclude: Collection[str] = (),
    defaults: Mapping[str, object] = _NOTHING,
) -> None:
    """Adds a flag per field of a dataclass, in a group of their own in `--help`.

    `max_num_seqs: int` becomes `--max-num-seqs N`, `enable_x: bool` becomes `--enable-x` and
    `--no-enable-x`, a sequence becomes a flag that may be repeated.

    Args:
        cls: the dataclass; its docstring has an `Args:` section.
        only: names of the fields that get a flag; None for all.
        exclude: names of fields that get none.
        defaults: what to say and to take in place of the dataclass's defaults.
    """
    group = parser.add_argument_group(title)
    hints = typing.get_type_hints(cls)
    texts = argument_help(cls)
    for field in dataclasses.fields(cls):
        if field.name in exclude or (only is not None and field.name not in only):
            continue
        default = defaults.get(field.name, field.default)
        group.add_argument(
            flag_of(field),
            dest=field.name,
            default=argparse.SUPPRESS,
            help=_help(texts, field.name, default),
            **_argument_kind(field.name, hints[field.name]),
        )


def build(
    cls: type[Options],
    args: argparse.Namespace,
    defaults: Mapping[str, object] = _NOTHING,
    settings: Mapping[str, Setting] = _NO_SETTINGS,
) -> Options:
    """Makes the dataclass from the flags that were given, `settings` for those that were not, and
    `defaults` for the rest.

    Raises:
        UsageError: the dataclass refuses a value; the message names the flag, or the source of the
            setting.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = dict(defaults)
    sources = {}
    for name, field in fields.items():
        if hasattr(args, name):
            value = getattr(args, name)
            values[name] = tuple(value) if isinstance(value, list) else value
            sources[name] = flag_of(field)
        elif name in settings:
            values[name] = settings[name].value
            sources[name] = settings[name].source
    try:
        return cls(**values)
    except ValueError as error:
        # The message begins with the field's name: show it as the user typed it.
        name, _, rest = str(error).partition(" ")
        raise UsageError(f"{sources.get(name, name)} {rest}") from error


def argument_help(cls: type) -> dict[str, str]:
    """The `Args:` section of a docstring, a text per name, each on one line."""
    _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")
    section = re.split(r"\n(?=\S)", section, maxsplit=1)[0]
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)
    texts = zip(entries[1::2], entries[2::2], strict=True)
    return {name: " ".join(text.split()) for name, text in texts}


def parse_bytes(text: str) -> int:
    """A number of bytes, with a binary unit or without: "4096", "512M", "2GiB"."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected bytes such as 512M or 2GiB, got {text!r}")
    return int(match[1]) << (10 * " kmgt".index(match[2] or " "))


def _argument_kind(name: str, hint: Any) -> dict[str, Any]:
    """argparse's words for a field's type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": typing.get_args(hint)}
    if typing.get_origin(hint) is not None and issubclass(typing.get_origin(hint), Sequence):
        (item,) = typing.get_args(hint)[:1]
        return {"action": "append", **_argument_kind(name, item)}
    if name.endswith("_bytes"):
        return {"type": parse_bytes, "metavar": "BYTES"}
    return {"type": hint, "metavar": {int: "N", float: "X"}.get(hint, "TEXT")}


def _help(texts: Mapping[str, str], name: str, default: object) -> str:
    """A docstring's words as a user of the command line would put them."""
    text = re.sub(r"\bNone\b", "unset", texts[name]).rstrip(".").replace("`", "")
    text = re.sub(
        r"\b\w+_\w+\b(?!\.\w)",
        lambda match: _flag(match[0]) if match[0] in texts else match[0],
        text,
    )
    text = text.replace("%", "%%")
    if name.endswith("_bytes"):
        text += "; may be written as 512M or 2GiB"
    if default is None or default is dataclasses.MISSING or default == ():
        return text
    if isinstance(default, bool):
        default = "on" if default else "off"
    # A command may have a default of its own where the dataclass has none.
    text = text.partition("; unset ")[0]
    return f"{text} (default: {default})"


def flag_of(field: dataclasses.Field[Any]) -> str:
    """A field that is given one by one is named for one: `names` by `--name`."""
    return _flag(field.metadata.get("flag", field.name))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
