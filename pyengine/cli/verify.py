"""Check on this machine that answers do not depend on what else the engine does.

Runs a set of prompts under many schedules (batches, chunks, preemptions, cache hits, threads) and
compares the logits after every token, bit for bit, with those of the prompt alone.

examples:
  pyengine verify smollm2-135m-instruct
  pyengine verify ./my-model.gguf --dtype float32 --max-tokens 64
  pyengine verify ./my-folder --quantization int8 --kv-cache-dtype int8
"""

import argparse

from pyengine.cli.options import add_options, build
from pyengine.config import EngineConfig

USAGE = "MODEL [options]"
# Those that decide what is computed. The others decide how, which is what the schedules vary.
ENGINE_OPTIONS = ("device", "dtype", "quantization", "max_model_len", "kv_cache_dtype")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=24,
        metavar="N",
        help="tokens to generate after each prompt (default: 24)",
    )
    add_options(parser, "engine", EngineConfig, only=ENGINE_OPTIONS)


def run(args: argparse.Namespace) -> int:
    config = build(EngineConfig, args)

    from pyengine.engine.loading import load
    from pyengine.verify import default_cases, default_schedules, verify

    loaded = load(config, show_progress=True)
    cases = default_cases(loaded, args.max_tokens)
    schedules = default_schedules(cases, loaded.device)
    print(
        f"{args.model}: {loaded.dtype}, {loaded.device.describe()}, {loaded.fingerprint}\n"
        f"{len(cases)} prompts under {len(schedules)} schedules, compared with each alone, "
        "token by token:",
        flush=True,
    )
    for verdict in verify(loaded, cases, schedules):
        print(
            f"  {verdict.schedule.name:<28}{verdict.num_compared:>6} rows of logits, "
            f"{verdict.num_preemptions:>3} preemptions: "
            + ("equal" if verdict.difference is None else "DIFFERENT"),
            flush=True,
        )
        if verdict.difference is not None:
            request_id, _, position = verdict.difference
            print(f"FAIL: {request_id}, the logits after token {position} differ first")
            return 1
    print("PASS: every bit is the same")
    return 0
