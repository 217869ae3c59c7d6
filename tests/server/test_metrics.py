"""What /metrics tells is true."""

import asyncio
from collections.abc import Sequence

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyengine.server.sse import EventStream
from tests.server.conftest import Server, StartServer
from tests.server.fakes import FakeAsyncEngine, answer


async def scrape(server: Server) -> dict[str, float]:
    """Name with labels, as in the text -> value."""
    async with server.http.get(server.url + "/metrics") as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        text = await response.text()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


async def test_gauges_follow_the_engine_and_end_at_zero(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True, max_num_seqs=4)
    server = await start_server(engine)
    call = asyncio.create_task(server.post("/v1/completions", {"prompt": "a", "n": 6}))
    await engine.until(lambda: len(engine.open) == 1)
    samples = await scrape(server)
    assert samples["pyengine:num_requests_running"] == 4
    assert samples["pyengine:num_requests_waiting"] == 2
    assert samples["pyengine:num_kv_blocks"] == 8
    assert samples["pyengine:num_used_kv_blocks"] == 4
    assert samples["pyengine:kv_cache_usage_perc"] == 0.5
    engine.release()
    await call
    samples = await scrape(server)
    assert samples["pyengine:num_requests_running"] == 0
    assert samples["pyengine:num_requests_waiting"] == 0
    assert samples["pyengine:num_used_kv_blocks"] == 0


async def test_counters_are_the_engines(server: Server) -> None:
    await server.post("/v1/completions", {"prompt": ["ab", "c"]})
    samples = await scrape(server)
    assert samples["pyengine:prompt_tokens_total"] == 5
    assert samples["pyengine:generation_tokens_total"] == 7
    assert samples["pyengine:prefix_cache_queries_total"] == 40
    assert samples["pyengine:prefix_cache_hits_total"] == 30
    assert samples["pyengine:recomputed_tokens_total"] == 17
    assert samples["pyengine:num_preemptions_total"] == 2
    assert samples["pyengine:requests_aborted_total"] == 0
    assert samples["pyengine:requests_timed_out_total"] == 3
    assert samples["pyengine:engine_steps_total"] > 0


async def test_each_finished_choice_is_one_sample(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(answer("ab", "abcdef")))
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 4}
    await server.post("/v1/completions", body)
    await server.stream("/v1/completions", body)
    samples = await scrape(server)
    for name, seconds in (
        ("time_to_first_token_seconds", 0.003),
        ("request_queue_time_seconds", 0.001),
        ("e2e_request_latency_seconds", 0.010),
        ("request_time_per_output_token_seconds", 0.002),
    ):
        assert samples[f"pyengine:{name}_count"] == 8
        assert abs(samples[f"pyengine:{name}_sum"] - 8 * seconds) < 1e-9
    assert samples["pyengine:request_success_total{finished_reason=stop}"] == 4
    assert samples["pyengine:request_success_total{finished_reason=length}"] == 4


async def test_a_failed_or_lost_request_leaves_no_sample(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(held=True)
    server = await start_server(engine)
    failing = asyncio.create_task(server.post("/v1/completions", {"prompt": "a"}))
    await engine.until(lambda: len(engine.open) == 1)
    engine.step()
    engine.fail_step()
    assert (await failing)[0] == 500
    lost = asyncio.create_task(server.post("/v1/completions", {"prompt": "a"}))
    await engine.until(lambda: len(engine.open) == 1)
    lost.cancel()
    await engine.until(lambda: not engine.open)
    samples = await scrape(server)
    assert samples["pyengine:time_to_first_token_seconds_count"] == 0
    assert samples["pyengine:requests_aborted_total"] == 1


async def test_http_answers_are_counted_by_route_and_status(server: Server) -> None:
    await server.post("/v1/completions", {"prompt": "a"})
    await server.stream("/v1/completions", {"prompt": "a"})
    await server.post("/v1/completions", {})
    await server.get("/v1/models/x/y")
    await server.get("/made/up")
    samples = await scrape(server)
    name = "pyengine:http_requests_total"
    assert samples[f"{name}{{path=/v1/completions,status=200}}"] == 2
    assert samples[f"{name}{{path=/v1/completions,status=400}}"] == 1
    assert samples[f"{name}{{path=/v1/models/{{model}},status=404}}"] == 1
    assert samples[f"{name}{{path=unknown,status=404}}"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_is_counted_as_499(
    start_server: StartServer, stream: bool
) -> None:
    engine = FakeAsyncEngine(held=True)
    server = await start_server(engine)
    call = asyncio.create_task(server.post("/v1/completions", {"prompt": "a", "stream": stream}))
    await engine.until(lambda: bool(engine.open))
    engine.step()
    call.cancel()
    await engine.until(lambda: not engine.open)
    samples = await scrape(server)
    assert samples["pyengine:http_requests_total{path=/v1/completions,status=499}"] == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"})],
)
async def test_so_is_one_that_goes_away_while_it_is_written_to(
    start_server: StartServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: dict[str, str],
) -> None:
    """It was logged as an error, with a traceback."""
    send = EventStream.send

    async def lose_client_and_send(stream: EventStream, events: Sequence[bytes]) -> None:
        if stream.is_started:
            transport = stream._request.transport
            assert transport is not None
            transport.close()  # aiohttp isn't told before the loop's next turn
        await send(stream, events)

    monkeypatch.setattr(EventStream, "send", lose_client_and_send)
    engine = FakeAsyncEngine()
    server = await start_server(engine)
    with pytest.raises(aiohttp.ClientPayloadError):
        await server.stream(path, body)
    await engine.until(lambda: not engine.open)
    samples = await scrape(server)
    assert samples[f"pyengine:http_requests_total{{path={path},status=499}}"] == 1
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_two_servers_in_one_process_count_apart(start_server: StartServer) -> None:
    first = await start_server(FakeAsyncEngine())
    second = await start_server(FakeAsyncEngine())
    await first.post("/v1/completions", {"prompt": "a"})
    assert (await scrape(first))["pyengine:time_to_first_token_seconds_count"] == 1
    assert (await scrape(second))["pyengine:time_to_first_token_seconds_count"] == 0
