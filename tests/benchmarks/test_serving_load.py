"""The load client, against small servers of known behaviour."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.serving_load import Exchange, Load, run_load, summarize

LOAD = Load(
    num_requests=6,
    concurrency=2,
    request_rate=None,
    input_len=10,
    output_len=3,
    shared_prefix_len=4,
    min_token_id=100,
    max_token_id=200,
    seed=1,
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _stream(request: web.Request, events: list[dict[str, Any]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def _choice(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Starts a server whose completions come from a handler; returns its URL."""
    servers: list[TestServer] = []

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]})

    async def serve(handler: Handler) -> str:
        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_post("/v1/completions", handler)
        servers.append(TestServer(app))
        await servers[-1].start_server()
        return str(servers[-1].make_url("/"))

    yield serve
    for server in servers:
        await server.close()


def test_prompts_are_a_function_of_the_seed_and_share_a_prefix() -> None:
    prompts = LOAD.prompts()
    assert prompts == LOAD.prompts()
    assert [len(prompt) for prompt in prompts] == [10] * 6
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 1
    assert len({tuple(prompt) for prompt in prompts}) == 6
    assert all(100 <= token_id < 200 for prompt in prompts for token_id in prompt)


def test_arrivals_have_the_asked_rate() -> None:
    load = Load(**{**vars(LOAD), "num_requests": 4001, "request_rate": 20.0, "concurrency": None})
    arrivals = load.arrivals_s()
    assert arrivals == sorted(arrivals)
    # The mean of 4,000 exponential gaps is off by less than 5 standard errors.
    assert arrivals[-1] / 4000 == pytest.approx(1 / 20, rel=5 / 4000**0.5)


async def test_every_prompt_is_sent_once_and_no_more_than_concurrency_are_open(
    serve: Callable[[Handler], Awaitable[str]],
) -> None:
    bodies: list[dict[str, Any]] = []
    num_open, most_open = 0, 0

    async def complete(request: web.Request) -> web.StreamResponse:
        nonlocal num_open, most_open
        bodies.append(await request.json())
        num_open += 1
        most_open = max(most_open, num_open)
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        events = [_choice("a"), _choice(""), _choice("b"), _choice("", "length")]
        response = await _stream(request, [*events, {"choices": [], "usage": usage}])
        num_open -= 1
        return response

    exchanges = await run_load(await serve(complete), LOAD)
    assert most_open <= 2
    assert sorted(body["prompt"] for body in bodies) == sorted(LOAD.prompts())
    assert bodies[0]["model"] == "tiny"
    assert (bodies[0]["max_tokens"], bodies[0]["temperature"]) == (3, 0)
    # A token whose text is held back is an event; a finish reason alone is not.
    assert [len(exchange.event_times_s) for exchange in exchanges] == [3] * 6
    report = summarize(exchanges)
    assert (report.num_succeeded, report.num_failed) == (6, 0)
    assert (report.num_prompt_tokens, report.num_cached_tokens) == (60, 24)
    assert report.num_output_tokens == 18


async def test_a_load_with_a_rate_sends_all_requests(
    serve: Callable[[Handler], Awaitable[str]],
) -> None:
    async def complete(request: web.Request) -> web.StreamResponse:
        return await _stream(request, [_choice("a")])

    load = Load(**{**vars(LOAD), "request_rate": 1000.0, "concurrency": None})
    exchanges = await run_load(await serve(complete), load, model="named")
    assert [exchange.error for exchange in exchanges] == [None] * 6


async def test_failures_are_counted_and_the_first_is_shown(
    serve: Callable[[Handler], Awaitable[str]],
) -> None:
    replies = iter(range(6))

    async def complete(request: web.Request) -> web.StreamResponse:
        number = next(replies)
        if number == 0:
            return web.Response(status=429, text="try later")
        if number == 1:
            return await _stream(request, [_choice("a"), {"error": {"message": "died"}}])
        return await _stream(request, [_choice("a")] if number < 5 else [])

    load = Load(**{**vars(LOAD), "concurrency": 1})
    exchanges = await run_load(await serve(complete), load)
    assert [exchange.error for exchange in exchanges] == [
        "HTTP 429: try later",
        '{"message": "died"}',
        None,
        None,
        None,
        "the stream ended without a token",
    ]
    report = summarize(exchanges)
    assert (report.num_succeeded, report.num_failed) == (3, 3)
    assert report.first_error == "HTTP 429: try later"


def test_the_report_is_arithmetic_on_the_times() -> None:
    exchanges = [
        Exchange(start_s=10.0, event_times_s=[10.1, 10.3, 10.4], num_output_tokens=3),
        Exchange(
            start_s=10.5, event_times_s=[11.0, 12.0], num_prompt_tokens=4, num_output_tokens=2
        ),
    ]
    report = summarize(exchanges)
    assert report.duration_s == pytest.approx(2.0)
    assert report.output_tokens_per_s == pytest.approx(2.5)
    assert report.total_tokens_per_s == pytest.approx(4.5)
    assert report.ttft_ms == pytest.approx(
        {"mean": 300, "p50": 100, "p90": 500, "p99": 500, "max": 500}
    )
    gaps = {"mean": 1300 / 3, "p50": 200, "p90": 1000, "p99": 1000, "max": 1000}
    assert report.itl_ms == pytest.approx(gaps)
    # 3 tokens after the first ones, in 0.3 and 1.0 seconds.
    assert report.decode_tokens_per_s == pytest.approx(3 / 1.3)
    assert report.latency_ms["max"] == pytest.approx(1500)


def test_a_load_that_failed_whole_is_an_error() -> None:
    with pytest.raises(ValueError, match="all 2 requests failed, the first with: refused"):
        summarize([Exchange(0.0, error="refused"), Exchange(0.0, error="later")])
