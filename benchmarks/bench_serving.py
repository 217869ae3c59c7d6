"""Loads an OpenAI-compatible server with streamed completions, and reports what a client sees.

    python benchmarks/bench_serving.py --concurrency 16 --num-requests 64 \\
        --input-len 128 --output-len 64

The table goes to standard error and one JSON object to standard output. Prompts are token ids from
a seeded generator, so that every server is given the same work; answers are greedy and have the
same length, for servers that know `ignore_eos`.
"""

import argparse
import asyncio
import dataclasses
import json
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent. Either `concurrency` requests are kept open, each replaced as it ends, or
    requests arrive at random (a Poisson process) at `request_rate` a second, however many are open.
    """

    num_requests: int
    concurrency: int | None
    request_rate: float | None
    input_len: int
    output_len: int
    shared_prefix_len: int  # first tokens that all prompts have in common
    min_token_id: int  # prompts are drawn from [min_token_id, max_token_id)
    max_token_id: int
    seed: int

    def prompts(self) -> list[list[int]]:
        """A list of token ids for each request."""
        rng = random.Random(self.seed)
        ids = range(self.min_token_id, self.max_token_id)
        prefix = rng.choices(ids, k=self.shared_prefix_len)
        return [
            prefix + rng.choices(ids, k=self.input_len - self.shared_prefix_len)
            for _ in range(self.num_requests)
        ]

    def arrivals_s(self) -> list[float]:
        """When each request is sent, in seconds from the start, for a load with a rate."""
        assert self.request_rate is not None
        rng = random.Random(self.seed)
        arrivals, now = [], 0.0
        for _ in range(self.num_requests):
            arrivals.append(now)
            now += rng.expovariate(self.request_rate)
        return arrivals


@dataclass
class Exchange:
    """One request as its client saw it; times are of `time.perf_counter`, in seconds."""

    start_s: float
    event_times_s: list[float] = field(default_factory=list)  # of each event that brought tokens
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Report:
    """A load and what came of it. Only the requests that succeeded are counted and timed."""

    num_succeeded: int
    num_failed: int
    first_error: str | None
    duration_s: float  # from the first request sent to the last token received
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_ms: dict[str, float]  # time to first token: mean, p50, p99
    itl_ms: dict[str, float]  # gaps between the events of a stream, of all requests together
    latency_ms: dict[str, float]  # whole requests


def summarize(exchanges: Sequence[Exchange]) -> Report:
    """The numbers of a run.

    Raises:
        ValueError: no request succeeded; the message is the first error.
    """
    done = [exchange for exchange in exchanges if exchange.error is None]
    errors = [exchange.error for exchange in exchanges if exchange.error is not None]
    if not done:
        raise ValueError(f"all {len(exchanges)} requests failed, the first with: {errors[0]}")
    duration_s = max(e.event_times_s[-1] for e in done) - min(e.start_s for e in done)
    num_prompt_tokens = sum(e.num_prompt_tokens for e in done)
    num_output_tokens = sum(e.num_output_tokens for e in done)
    gaps = [
        later - sooner
        for e in done
        for sooner, later in zip(e.event_times_s, e.event_times_s[1:], strict=False)
    ]
    return Report(
        num_succeeded=len(done),
        num_failed=len(errors),
        first_error=errors[0] if errors else None,
        duration_s=duration_s,
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=sum(e.num_cached_tokens for e in done),
        num_output_tokens=num_output_tokens,
        output_tokens_per_s=num_output_tokens / duration_s,
        total_tokens_per_s=(num_prompt_tokens + num_output_tokens) / duration_s,
        ttft_ms=_distribution_ms([e.event_times_s[0] - e.start_s for e in done]),
        itl_ms=_distribution_ms(gaps),
        latency_ms=_distribution_ms([e.event_times_s[-1] - e.start_s for e in done]),
    )


async def run_load(
    url: str, load: Load, *, model: str | None = None, timeout_s: float = 600.0
) -> list[Exchange]:
    """Sends a load to the server at `url`, and returns its requests in the order of `prompts`.

    Args:
        model: the name to ask for; None asks the server for its first.
    """
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        if model is None:
            async with session.get("/v1/models", raise_for_status=True) as response:
                model = (await response.json())["data"][0]["id"]
        bodies = [_body(model, prompt, load.output_len) for prompt in load.prompts()]
        if load.request_rate is None:
            limit = asyncio.Semaphore(load.concurrency or 1)

            async def send_in_turn(body: dict[str, Any]) -> Exchange:
                async with limit:
                    return await send(session, body)

            return await asyncio.gather(*map(send_in_turn, bodies))

        start = asyncio.get_running_loop().time()

        async def send_at(arrival_s: float, body: dict[str, Any]) -> Exchange:
            await asyncio.sleep(start + arrival_s - asyncio.get_running_loop().time())
            return await send(session, body)

        return await asyncio.gather(*map(send_at, load.arrivals_s(), bodies))


async def send(session: aiohttp.ClientSession, body: dict[str, Any]) -> Exchange:
    """Sends one request and reads its stream to the end. An error is kept in the result."""
    exchange = Exchange(start_s=time.perf_counter())
    try:
        async with session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                exchange.error = f"HTTP {response.status}: {(await response.text())[:300]}"
                return exchange
            async for event in _events(response.content):
                _record(exchange, event, time.perf_counter())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        exchange.error = repr(error)
    if exchange.error is None and not exchange.event_times_s:
        exchange.error = "the stream ended without a token"
    return exchange


def _body(model: str, prompt: list[int], output_len: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON payloads of a stream of server-sent events, up to [DONE]."""
    async for line in content:
        field_name, _, value = line.decode().strip().partition(":")
        if field_name == "data" and value.strip() != "[DONE]":
            yield json.loads(value)


def _record(exchange: Exchange, event: dict[str, Any], now_s: float) -> None:
    if "error" in event:
        exchange.error = json.dumps(event["error"])[:300]
        return
    if usage := event.get("usage"):
        exchange.num_prompt_tokens = usage["prompt_tokens"]
        exchange.num_output_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        exchange.num_cached_tokens = details.get("cached_tokens") or 0
    choices = event.get("choices")
    # The last event of a stream may have a finish reason alone.
    if choices and (choices[0]["text"] or not choices[0].get("finish_reason")):
        exchange.event_times_s.append(now_s)


def _distribution_ms(values_s: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles (nearest rank), in ms; empty for no values."""
    if not values_s:
        return {}
    ordered = sorted(values_s)
    ranks = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    result = {"mean": 1000 * sum(ordered) / len(ordered)}
    for name, share in ranks.items():
        result[name] = 1000 * ordered[math.ceil(share * len(ordered)) - 1]
    return result


def _table(report: Report) -> str:
    lines = []
    for name, value in dataclasses.asdict(report).items():
        if isinstance(value, dict):
            text = "  ".join(f"{key} {number:,.1f}" for key, number in value.items())
        else:
            text = f"{value:,.2f}" if isinstance(value, float) else str(value)
        lines.append(f"{name:<20} {text}")
    return "\n".join(lines)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Load an OpenAI-compatible server with streamed completions.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="without /v1")
    parser.add_argument("--model", help="the name to ask for; by default the server's first")
    parser.add_argument("--num-requests", type=int, default=64)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--concurrency", type=int, default=16, help="requests kept open")
    pace.add_argument("--request-rate", type=float, help="requests a second, arriving at random")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens")
    parser.add_argument("--output-len", type=int, default=64, help="tokens to generate")
    parser.add_argument("--shared-prefix-len", type=int, default=0, help="tokens in common")
    parser.add_argument("--min-token-id", type=int, default=1000)
    parser.add_argument("--max-token-id", type=int, default=30000, help="exclusive")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and arrivals")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of one request")
    args = parser.parse_args()
    for name in ("num_requests", "concurrency", "input_len", "output_len"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.request_rate is not None and args.request_rate <= 0:
        parser.error("--request-rate must be above 0")
    if not 0 <= args.shared_prefix_len <= args.input_len:
        parser.error("--shared-prefix-len must be between 0 and --input-len")
    if not 0 <= args.min_token_id < args.max_token_id:
        parser.error("--min-token-id must be at least 0 and below --max-token-id")
    return args


def main() -> int:
    args = _parse_args()
    fields = {f.name: getattr(args, f.name) for f in dataclasses.fields(Load)}
    if args.request_rate is not None:
        fields["concurrency"] = None
    load = Load(**fields)
    try:
        exchanges = asyncio.run(
            run_load(args.url, load, model=args.model, timeout_s=args.timeout_s)
        )
        report = summarize(exchanges)
    except (aiohttp.ClientError, ValueError) as error:
        print(f"bench_serving: error: {error}", file=sys.stderr)
        return 1
    print(_table(report), file=sys.stderr)
    print(json.dumps({"load": dataclasses.asdict(load), **dataclasses.asdict(report)}))
    return 1 if report.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
