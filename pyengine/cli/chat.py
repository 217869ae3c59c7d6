"""Talk with a model in the terminal.

/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer.

examples:
  pyengine chat smollm2-135m-instruct
  pyengine chat ./my-model.gguf --system "You answer in one sentence." --temperature 0
"""

import argparse
import contextlib
import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from pyengine.cli.options import add_options, build
from pyengine.config import EngineConfig
from pyengine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyengine import LLM

USAGE = "MODEL [options]"
DEFAULTS = {"max_tokens": None, "temperature": 0.7}
Message = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    add_options(
        parser,
        "sampling",
        SamplingParams,
        exclude=("n", "seed", "logprobs", "prompt_logprobs", "logit_bias", "grammar"),
        defaults=DEFAULTS,
    )
    add_options(parser, "engine", EngineConfig, exclude=("model",))


def run(args: argparse.Namespace) -> int:
    config = build(EngineConfig, args)
    params = build(SamplingParams, args, DEFAULTS)

    from pyengine import LLM

    llm = LLM(**dataclasses.asdict(config), show_progress=True)
    opening = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(opening)
    print("/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer", file=sys.stderr)
    while (text := _read_line()) is not None:
        if text == "/exit":
            break
        if text == "/reset":
            messages = list(opening)
        elif text.startswith("/"):
            print(f"unknown command {text}: there are /reset and /exit", file=sys.stderr)
        elif text:
            messages = _exchange(llm, [*messages, {"role": "user", "content": text}], params)
    return 0


def _read_line() -> str | None:
    """What the user typed, or None at the end. Ctrl-C gives up the line."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        return None


def _exchange(llm: "LLM", messages: list[Message], params: SamplingParams) -> list[Message]:
    """Prints the answer as it comes, and returns the conversation with it; if the request is
    refused (too long, most often), without the question."""
    answer = ""
    try:
        with _interrupts() as interrupted:
            for update in llm.stream_chat(messages, params):
                for delta in update.deltas:
                    print(delta.text, end="", flush=True)
                    answer += delta.text
                if interrupted.is_set():
                    break
    except ValueError as error:
        print(f"pyengine: error: {error} (/reset starts over)", file=sys.stderr)
        return messages[:-1]
    print()
    return [*messages, {"role": "assistant", "content": answer}]


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C sets the event, rather than raise in the middle of a step; a second one raises."""
    interrupted = threading.Event()

    def handle(signum: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
