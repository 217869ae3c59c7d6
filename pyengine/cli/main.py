"""The parser of the command line, and what every command does with an error."""

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from pyengine import __version__
from pyengine.cli import bench, chat, generate, pull, serve, verify
from pyengine.cli.options import UsageError
from pyengine.errors import StepFailedError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended

COMMANDS: dict[str, ModuleType] = {
    "serve": serve,
    "generate": generate,
    "chat": chat,
    "pull": pull,
    "bench": bench,
    "verify": verify,
}
EPILOG = """\
MODEL is a folder with a Hugging Face checkpoint, a .gguf file, a name on the Hugging Face hub
(org/name), or the demo model smollm2-135m-instruct, which is fetched at first use.

examples:
  pyengine serve smollm2-135m-instruct
  pyengine generate smollm2-135m-instruct "Once upon a time" --temperature 0
  pyengine chat ./my-model.gguf --system "You answer in one sentence."
  pyengine COMMAND --help
"""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, and points to --help rather than print every flag."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"pyengine: error: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """The command line up to the command's name. Imports nothing heavy: no help text waits for
    PyTorch."""
    summaries = "\n".join(f"  {name:<10}{_docs(name)[0]}" for name in COMMANDS)
    parser = _Parser(
        prog="pyengine",
        usage="pyengine [--help] [--version] COMMAND MODEL [options]",
        description=f"Serve a large language model, or use it from the terminal.\n\n{summaries}",
        epilog=EPILOG,
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pyengine {__version__}")
    parser.add_argument(
        "command", metavar="COMMAND", choices=COMMANDS, help=f"one of {', '.join(COMMANDS)}"
    )
    return parser


def make_command_parser(name: str) -> argparse.ArgumentParser:
    """The command line after the command's name."""
    module = COMMANDS[name]
    parser = _Parser(
        prog=f"pyengine {name}",
        usage=f"pyengine {name} {module.USAGE}",
        description="\n".join(_docs(name)),
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a folder, a .gguf file, a hub name, or smollm2-135m-instruct",
    )
    module.add_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line (`sys.argv` by default) and returns the exit status: 0, 1 for what
    went wrong, 2 for a command line that can't be carried out, 130 after Ctrl-C."""
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone, and the interpreter would flush once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE


def _run(argv: Sequence[str]) -> int:
    # PyTorch's own loops run on OpenMP, whose threads would spin for milliseconds after each loop,
    # on cores that our kernels, the server and its clients want. Read when PyTorch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    name = make_parser().parse_args(argv[:1]).command
    # Not subparsers: they can't take a prompt that stands after a flag.
    args = make_command_parser(name).parse_intermixed_args(argv[1:])
    try:
        status: int = COMMANDS[name].run(args)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except UsageError as error:
        print(f"pyengine: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, StepFailedError) as error:
        print(f"pyengine: error: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return status


def _docs(name: str) -> tuple[str, str]:
    """The first line of a command's docstring, and the rest."""
    summary, _, details = inspect.cleandoc(COMMANDS[name].__doc__ or "").partition("\n")
    return summary, details


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=100)
