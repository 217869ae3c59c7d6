"""Loads an OpenAI-compatible server with streamed completions, and reports what a client sees.

    python -m benchmarks.bench_serving --concurrency 1 4 16 64 --json closed.json
    python -m benchmarks.bench_serving --request-rate 1 2 4 --num-requests 64 --json open.json

Each number is a level, run in turn with prompts of its own: so many requests kept open, or arriving
at random at so many a second. `plot_serving` draws what `--json` writes.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.serving_load import Load, Report, run_load, summarize

NUM_REQUESTS_AT_A_RATE = 64
NUM_REQUESTS_PER_OPEN_ONE = 4

HEADER = (
    f"{'level':<16}{'ok':>5}{'failed':>8}{'out tok/s':>11}"
    f"{'TTFT p50':>11}{'p90':>8}{'p99':>8}{'ITL p50':>10}{'p90':>8}{'p99':>8}"
    f"{'E2E p50':>11}{'p90':>8}{'p99':>8}   (ms)"
)


def levels(args: argparse.Namespace) -> list[Load]:
    """The loads that the options ask for, no two with the same prompts."""
    common = {
        name: getattr(args, name)
        for name in (
            "input_len",
            "output_len",
            "shared_prefix_len",
            "min_token_id",
            "max_token_id",
        )
    }
    rates, concurrencies = args.request_rate or [], args.concurrency or []
    loads = [
        Load(request_rate=rate, num_requests=args.num_requests or NUM_REQUESTS_AT_A_RATE, **common)
        for rate in rates
    ] + [
        Load(
            concurrency=concurrency,
            num_requests=args.num_requests or NUM_REQUESTS_PER_OPEN_ONE * concurrency,
            **common,
        )
        for concurrency in concurrencies
    ]
    return [dataclasses.replace(load, seed=args.seed + i) for i, load in enumerate(loads)]


def row(load: Load, report: Report) -> str:
    """A line of the table under `HEADER`."""
    level = (
        f"{load.request_rate:g} a second" if load.request_rate else f"{load.concurrency} at once"
    )
    cells = f"{level:<16}{report.num_succeeded:>5}{report.num_failed:>8}"
    cells += f"{report.output_tokens_per_s:>11,.1f}"
    for distribution, width in ((report.ttft_ms, 11), (report.itl_ms, 10), (report.latency_ms, 11)):
        for name in ("p50", "p90", "p99"):
            value = f"{distribution[name]:,.0f}" if distribution else "-"
            cells += value.rjust(width if name == "p50" else 8)
    return cells


async def run_levels(
    url: str, loads: list[Load], *, model: str | None, timeout_s: float
) -> list[dict[str, Any]]:
    """Runs the loads in turn and prints a row for each. Returns what `--json` writes of them.

    Raises:
        ValueError: no request of a load succeeded.
        aiohttp.ClientError: the server can't be reached.
    """
    results = []
    print(HEADER, flush=True)
    for load in loads:
        report = summarize(await run_load(url, load, model=model, timeout_s=timeout_s))
        print(row(load, report), flush=True)
        if report.first_error:
            print(f"{'':<16}first error: {report.first_error}", flush=True)
        results.append({"load": dataclasses.asdict(load), "report": dataclasses.asdict(report)})
    return results


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Load an OpenAI-compatible server with streamed completions.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="without /v1")
    parser.add_argument("--model", help="the name to ask for; by default the server's first")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--concurrency", type=int, nargs="+", help="requests kept open (default: 16)")
    pace.add_argument(
        "--request-rate", type=float, nargs="+", help="requests a second, arriving at random"
    )
    parser.add_argument(
        "--num-requests",
        type=int,
        help=f"of each level (default: {NUM_REQUESTS_AT_A_RATE} at a rate, "
        f"{NUM_REQUESTS_PER_OPEN_ONE} for each one kept open)",
    )
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens")
    parser.add_argument("--output-len", type=int, default=64, help="tokens to generate")
    parser.add_argument("--shared-prefix-len", type=int, default=0, help="tokens in common")
    parser.add_argument("--min-token-id", type=int, default=1000)
    parser.add_argument("--max-token-id", type=int, default=30000, help="exclusive")
    parser.add_argument("--seed", type=int, default=0, help="of the first level; others count on")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of one request")
    parser.add_argument("--label", help="what charts call the server (default: its URL)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    args = parser.parse_args(argv)
    if not args.request_rate and not args.concurrency:
        args.concurrency = [16]
    for name in ("num_requests", "concurrency", "input_len", "output_len"):
        value = getattr(args, name)
        if value is not None and min(value if isinstance(value, list) else [value]) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.request_rate and min(args.request_rate) <= 0:
        parser.error("--request-rate must be above 0")
    if not 0 <= args.shared_prefix_len <= args.input_len:
        parser.error("--shared-prefix-len must be between 0 and --input-len")
    if not 0 <= args.min_token_id < args.max_token_id:
        parser.error("--min-token-id must be at least 0 and below --max-token-id")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        results = asyncio.run(
            run_levels(args.url, levels(args), model=args.model, timeout_s=args.timeout_s)
        )
    except (aiohttp.ClientError, ValueError) as error:
        print(f"bench_serving: error: {error}", file=sys.stderr)
        return 1
    if args.json:
        args.json.write_text(json.dumps({"label": args.label or args.url, "results": results}))
    return 1 if any(result["report"]["num_failed"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
