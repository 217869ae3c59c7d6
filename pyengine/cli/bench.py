"""Measure how fast a model runs on this machine, in this process.

Prints the seconds until the first token of a cold start, the tokens per second of decoding with one
sequence and with many, and those of a prefill. Prompts are random token ids; nothing is reused from
the prefix cache. For a running server, see benchmarks/bench_serving.py.

examples:
  pyengine bench smollm2-135m-instruct
  pyengine bench ./my-model.gguf --batch-sizes 1 8 64 --json
"""

import argparse
import dataclasses
import json
import random
import resource
import statistics
import time
from typing import TYPE_CHECKING

from pyengine.cli.options import UsageError, add_options, build
from pyengine.config import EngineConfig
from pyengine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyengine import LLM

USAGE = "MODEL [options]"
# Random prompts are answered with repetitions, which prefixes and guesses would shorten to nothing.
DEFAULTS = {"enable_prefix_caching": False, "max_draft_tokens": 0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--batch-sizes",
        metavar="N",
        type=int,
        nargs="+",
        default=[1, 16],
        help="how many sequences to decode together (default: 1 16)",
    )
    for flag, default, text in (
        ("--input-len", 32, "prompt tokens of a decoded sequence"),
        ("--output-len", 64, "tokens generated per sequence"),
        ("--prefill-len", 1024, "prompt tokens of the prefill, cut to what the model can take"),
        ("--repeats", 3, "runs of each measurement, of which the median is shown"),
    ):
        group.add_argument(
            flag, metavar="N", type=int, default=default, help=f"{text} (default: {default})"
        )
    group.add_argument("--json", action="store_true", help="print one JSON object, not a table")
    add_options(parser, "engine", EngineConfig, exclude=("model",), defaults=DEFAULTS)


def run(args: argparse.Namespace) -> int:
    for name in ("input_len", "prefill_len", "repeats", "batch_sizes"):
        value = getattr(args, name)
        if min(value if isinstance(value, list) else [value]) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if args.output_len < 2:
        raise UsageError(f"--output-len must be at least 2, got {args.output_len}")
    config = build(EngineConfig, args, DEFAULTS)

    start = time.perf_counter()
    from pyengine import LLM

    llm = LLM(**dataclasses.asdict(config), show_progress=True)
    rng = random.Random(config.seed)
    _run(llm, rng, batch_size=1, input_len=args.input_len, output_len=2)
    numbers = {"time_to_first_token_from_start_s": time.perf_counter() - start}
    for batch_size in args.batch_sizes:
        numbers[f"decode_tokens_per_s_batch_{batch_size}"] = statistics.median(
            _run(llm, rng, batch_size, args.input_len, args.output_len)[1]
            for _ in range(args.repeats)
        )
    prefill_len = min(args.prefill_len, llm.engine.max_sequence_len - 2)
    numbers[f"prefill_tokens_per_s_{prefill_len}"] = statistics.median(
        _run(llm, rng, 1, prefill_len, output_len=2)[0] for _ in range(args.repeats)
    )
    numbers["max_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # from KiB

    if args.json:
        print(json.dumps({name: round(value, 3) for name, value in numbers.items()}))
    else:
        for name, value in numbers.items():
            print(f"{name:<36}{value:>12,.2f}")
    return 0


def _run(
    llm: "LLM", rng: random.Random, batch_size: int, input_len: int, output_len: int
) -> tuple[float, float]:
    """Runs a batch of random prompts. Returns the tokens per second of its first prompt's prefill,
    and of the decoding of all its sequences together."""
    prompts = [
        [rng.randrange(llm.tokenizer.vocab_size) for _ in range(input_len)]
        for _ in range(batch_size)
    ]
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    prefills_ms, first_tokens_ms, totals_ms = [], [], []
    for result in llm.generate(prompts, params):
        timings = result.outputs[0].timings
        assert timings is not None
        assert timings.time_to_first_token_ms is not None
        prefills_ms.append(timings.time_to_first_token_ms - timings.queue_wait_ms)
        first_tokens_ms.append(timings.time_to_first_token_ms)
        totals_ms.append(timings.total_ms)
    # All arrived together: from the first token of any sequence to the last of all.
    decode_ms = max(totals_ms) - min(first_tokens_ms)
    return (
        1000 * input_len / prefills_ms[0],
        1000 * batch_size * (output_len - 1) / decode_ms,
    )
