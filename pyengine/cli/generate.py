"""Continue one or more texts.

Without PROMPT, the prompt is read from standard input. One prompt is streamed as it is generated;
several run as one batch, and are printed in order.

examples:
  pyengine generate smollm2-135m-instruct "Once upon a time" --temperature 0
  pyengine generate smollm2-135m-instruct < prompt.txt --max-tokens 100
"""

import argparse
import dataclasses
import sys

from pyengine.cli.options import UsageError, add_options, build
from pyengine.config import EngineConfig
from pyengine.sampling_params import SamplingParams

USAGE = "MODEL [PROMPT ...] [options]"
DEFAULTS = {"max_tokens": 256}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="a text to continue")
    add_options(
        parser,
        "sampling",
        SamplingParams,
        exclude=("seed", "logprobs", "prompt_logprobs", "logit_bias", "grammar"),
        defaults=DEFAULTS,
    )
    add_options(parser, "engine", EngineConfig, exclude=("model",))


def run(args: argparse.Namespace) -> int:
    config = build(EngineConfig, args)
    params = build(SamplingParams, args, DEFAULTS)
    prompts = args.prompts or [_read_prompt()]

    from pyengine import LLM

    llm = LLM(**dataclasses.asdict(config), show_progress=True)
    if len(prompts) == 1 and params.n == 1:
        for update in llm.stream(prompts[0], params):
            for delta in update.deltas:
                print(delta.text, end="", flush=True)
        print()
        return 0
    for number, result in enumerate(llm.generate(prompts, params), start=1):
        for output in result.outputs:
            of_n = f", {output.index + 1} of {params.n}" if params.n > 1 else ""
            print(f"=== prompt {number}{of_n}\n{output.text}")
    return 0


def _read_prompt() -> str:
    if sys.stdin.isatty():
        raise UsageError("give a prompt, as an argument or on standard input")
    prompt = sys.stdin.read().removesuffix("\n")
    if not prompt:
        raise UsageError("the prompt on standard input is empty")
    return prompt
