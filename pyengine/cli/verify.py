"""Check on this machine that answers do not depend on what else the engine does.

Runs a set of prompts under many schedules (batches, chunks, preemptions, cache hits, threads) and
compares the logits after every token, bit for bit, with those of the prompt alone.

examples:
  pyengine verify smollm2-135m-instruct
  pyengine verify ./my-model.gguf --dtype float32 --max-tokens 64
"""

import argparse

from pyengine.config import EngineConfig

USAGE = "MODEL [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=24,
        metavar="N",
        help="tokens to generate after each prompt (default: 24)",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of weights, activations and KV cache (default: auto)",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "int8"),
        default="auto",
        help="of the KV cache, if not the other's (default: auto)",
    )


def run(args: argparse.Namespace) -> int:
    config = EngineConfig(model=args.model, dtype=args.dtype, kv_cache_dtype=args.kv_cache_dtype)

    from pyengine import ops
    from pyengine.engine.loading import load
    from pyengine.verify import default_cases, default_schedules, verify

    loaded = load(config, show_progress=True)
    cases = default_cases(loaded, args.max_tokens)
    schedules = default_schedules(cases)
    print(
        f"{args.model}: {loaded.dtype}, {ops.isa_name()}, {loaded.fingerprint}\n"
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
