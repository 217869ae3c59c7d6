"""Flags agree with the dataclasses that they are made from."""

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from pyengine.cli.main import COMMANDS, make_command_parser
from pyengine.cli.options import UsageError, add_options, argument_help, build, parse_bytes
from pyengine.config import EngineConfig
from pyengine.sampling_params import SamplingParams
from pyengine.server.options import ServerOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Some options.

    Args:
        color: its color; "red" is
            the usual one, half of it being 50%.
        max_things: the most things; None takes what limit_bytes allows.
        limit_bytes: memory for things.
        words: to look for.
        enable_magic: use it.

    Raises:
        ValueError: there is no such number of things.
    """

    color: Literal["red", "blue"] = "red"
    max_things: int | None = None
    limit_bytes: int = 1024
    words: Sequence[str] = ()
    enable_magic: bool = True

    def __post_init__(self) -> None:
        if self.max_things == 0:
            raise ValueError("max_things must be at least 1, got 0")


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_options(parser, "options", Options)
    return parser


def test_no_flags_give_the_dataclass_with_its_defaults(parser: argparse.ArgumentParser) -> None:
    assert build(Options, parser.parse_args([])) == Options()


def test_every_kind_of_field_has_its_flag(parser: argparse.ArgumentParser) -> None:
    argv = "--color blue --max-things 3 --limit-bytes 2KiB --words a --words b --no-enable-magic"
    args = parser.parse_args(argv.split())
    assert build(Options, args) == Options(
        color="blue", max_things=3, limit_bytes=2048, words=("a", "b"), enable_magic=False
    )


def test_the_help_is_the_docstring_in_the_words_of_the_command_line(
    parser: argparse.ArgumentParser,
) -> None:
    text = " ".join(parser.format_help().split())
    assert 'its color; "red" is the usual one, half of it being 50% (default: red)' in text
    assert "the most things; unset takes what --limit-bytes allows --" in text
    assert "use it (default: on)" in text
    assert "no such number" not in text


def test_a_command_may_have_some_of_the_flags() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, "options", Options, only=["color", "max_things"], exclude=["max_things"])
    flags = [flag for action in parser._actions for flag in action.option_strings]
    assert flags == ["-h", "--help", "--color"]


def test_a_value_that_the_dataclass_refuses_is_a_usage_error_that_names_the_flag(
    parser: argparse.ArgumentParser,
) -> None:
    with pytest.raises(UsageError, match=r"^--max-things must be at least 1, got 0$"):
        build(Options, parser.parse_args(["--max-things", "0"]))


def test_a_command_may_have_defaults_of_its_own() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, "options", Options, defaults={"max_things": 5}, exclude=["color"])
    assert "--color" not in parser.format_help()
    text = " ".join(parser.format_help().split())
    assert "(default: 5)" in text
    assert "unset" not in text  # what leaving it out would mean, were it not for the default
    assert build(Options, parser.parse_args([]), {"max_things": 5}).max_things == 5
    assert build(Options, parser.parse_args(["--max-things", "2"]), {"max_things": 5}) == Options(
        max_things=2
    )


@pytest.mark.parametrize("cls", [EngineConfig, ServerOptions, SamplingParams])
def test_every_option_is_described_in_the_docstring(cls: type) -> None:
    assert list(argument_help(cls)) == [field.name for field in dataclasses.fields(cls)]


def engine_help(command: str) -> dict[str, str]:
    """What a command's help says of the engine's options."""
    names = {field.name for field in dataclasses.fields(EngineConfig)} - {"model"}
    actions = make_command_parser(command)._actions
    return {action.dest: action.help or "" for action in actions if action.dest in names}


@pytest.mark.parametrize("command", ["serve", "generate", "chat", "bench"])
def test_every_engine_option_has_a_flag(command: str) -> None:
    assert {"model", *engine_help(command)} == {f.name for f in dataclasses.fields(EngineConfig)}


@pytest.mark.parametrize("command", ["generate", "chat", "bench", "verify"])
def test_all_commands_describe_an_engine_option_in_the_same_words(command: str) -> None:
    def common(text: str) -> str:
        """All but what it says of the default: a command may have its own."""
        return re.split(r"; unset | \(default", text)[0]

    texts = engine_help(command)
    assert {"dtype", "quantization", "max_model_len", "kv_cache_dtype"} <= set(texts)
    for name, text in engine_help("serve").items():
        assert common(texts.get(name, text)) == common(text)


def test_the_readme_lists_flags_that_exist_with_their_defaults() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    rows = re.findall(r"^\| `--(?:no-)?([a-z-]+)` \| `?(.*?)`? \|", readme, re.MULTILINE)
    defaults = {field.name: field.default for field in dataclasses.fields(EngineConfig)}
    assert len(rows) > 5
    for flag, shown in rows:
        default = defaults[flag.replace("-", "_")]
        if default is None or isinstance(default, bool):
            continue  # said in words
        assert float(shown) == default if isinstance(default, float) else shown == str(default)


def test_serve_has_the_flags_that_users_of_other_servers_know() -> None:
    text = make_command_parser("serve").format_help()
    for flag in (
        "--host",
        "--port",
        "--dtype",
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--block-size",
        "--num-kv-blocks",
        "--served-model-name",
        "--seed",
        "--no-enable-prefix-caching",
    ):
        assert f"{flag} " in text or f"{flag}\n" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_text_fits_a_terminal_and_has_an_example(command: str) -> None:
    text = make_command_parser(command).format_help()
    assert max(map(len, text.splitlines())) <= 100
    assert f"  pyengine {command} " in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("1k", 1024), ("512M", 512 << 20), ("2GiB", 2 << 30), ("1 tb", 1 << 40)],
)
def test_bytes_may_have_a_unit(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "G", "1.5G", "-1", "2 GiB more"])
def test_other_bytes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 512M or 2GiB, got"):
        parse_bytes(text)
