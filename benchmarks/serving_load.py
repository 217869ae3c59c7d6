"""The client of the benchmarks: sends a load of completions to a server and times what it answers.

Prompts are token ids from a seeded generator, so that every server is given the same work; answers
are greedy and have the same length, for servers that know `ignore_eos`.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent. Either `concurrency` requests are kept open, each replaced as it ends, or
    requests arrive at random (a Poisson process) at `request_rate` a second, however many are open.
    """

    num_requests: int
    concurrency: int | None = None
    request_rate: float | None = None
    input_len: int
    output_len: int
    shared_prefix_len: int = 0  # first tokens that all prompts have in common
    min_token_id: int = 1000  # prompts are drawn from [min_token_id, max_token_id)
    max_token_id: int = 30000
    seed: int = 0

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
    text: str = ""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Report:
    """What came of a load. Only the requests that succeeded are counted and timed."""

    num_succeeded: int
    num_failed: int
    first_error: str | None
    duration_s: float  # from the first request sent to the last token received
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    decode_tokens_per_s: float | None  # of one stream, after its first token; None without more
    ttft_ms: dict[str, float]  # time to first token: mean, p50, p90, p99, max
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
    decoding_s = sum(e.event_times_s[-1] - e.event_times_s[0] for e in done)
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
        decode_tokens_per_s=(num_output_tokens - len(done)) / decoding_s if decoding_s else None,
        ttft_ms=_distribution_ms([e.event_times_s[0] - e.start_s for e in done]),
        itl_ms=_distribution_ms(gaps),
        latency_ms=_distribution_ms([e.event_times_s[-1] - e.start_s for e in done]),
    )


async def run_load(
    url: str, load: Load, *, model: str | None = None, timeout_s: float = 600.0
) -> list[Exchange]:
    """Sends a load to the server at `url`, and returns its requests in the order of `prompts`.

    Args:
        url: without /v1.
        model: the name to ask for; None asks the server for its first.
        timeout_s: of one request.
    """
    # A connection for each request: a server may close one that it has answered on at any time.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        if model is None:
            async with session.get("/v1/models", raise_for_status=True) as response:
                model = (await response.json())["data"][0]["id"]
        bodies = [_body(model, prompt, load.output_len) for prompt in load.prompts()]
        if load.request_rate is None:
            limit = asyncio.Semaphore(load.concurrency or 1)

            async def send_in_turn(body: dict[str, Any]) -> _Stream:
                async with limit:
                    return await _send(session, body)

            streams = await asyncio.gather(*map(send_in_turn, bodies))
        else:
            start = asyncio.get_running_loop().time()

            async def send_at(arrival_s: float, body: dict[str, Any]) -> _Stream:
                await asyncio.sleep(start + arrival_s - asyncio.get_running_loop().time())
                return await _send(session, body)

            streams = await asyncio.gather(*map(send_at, load.arrivals_s(), bodies))
    return [stream.exchange() for stream in streams]


@dataclass
class _Stream:
    """What came from the server, read as text only when the load is over: the client runs on the
    cores that the server computes on."""

    start_s: float
    reads: list[tuple[float, bytes]] = field(default_factory=list)  # (time, bytes)
    error: str | None = None

    def exchange(self) -> Exchange:
        exchange = Exchange(self.start_s, error=self.error)
        if self.error is None:
            try:
                for time_s, event in self._events():
                    _record(exchange, event, time_s)
            except ValueError as error:
                exchange.error = repr(error)
        if exchange.error is None and not exchange.event_times_s:
            exchange.error = "the stream ended without a token"
        return exchange

    def _events(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """The JSON payloads of a stream of server-sent events, each with the time of its end."""
        pending = b""
        for time_s, data in self.reads:
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                field_name, _, value = line.strip().partition(b":")
                if field_name == b"data" and value.strip() != b"[DONE]":
                    yield time_s, json.loads(value)


async def _send(session: aiohttp.ClientSession, body: dict[str, Any]) -> _Stream:
    """Sends one request and reads its stream to the end. An error is kept in the result."""
    stream = _Stream(time.perf_counter())
    try:
        async with session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                stream.error = f"HTTP {response.status}: {(await response.text())[:300]}"
                return stream
            async for data in response.content.iter_any():
                stream.reads.append((time.perf_counter(), data))
    except (aiohttp.ClientError, TimeoutError) as error:
        stream.error = repr(error)
    return stream


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
        exchange.text += choices[0]["text"]


def _distribution_ms(values_s: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles (nearest rank), in ms; empty for no values."""
    if not values_s:
        return {}
    ordered = sorted(values_s)
    ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    result = {"mean": 1000 * sum(ordered) / len(ordered)}
    for name, share in ranks.items():
        result[name] = 1000 * ordered[math.ceil(share * len(ordered)) - 1]
    return result
