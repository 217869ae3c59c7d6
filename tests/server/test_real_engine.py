"""The server on the real engine: a tiny model over 8 blocks of 4 tokens."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from pyengine.config import EngineConfig
from pyengine.engine import AsyncEngine, Engine, FaultInjection
from pyengine.server.options import ServerOptions
from pyengine.server.serve import bind, serve
from tests.engine.harness import prompt_of
from tests.engine.test_async_engine import Gate
from tests.server.conftest import Server, StartServer, read_events
from tests.server.fakes import MODEL_NAME
from tests.server.test_metrics import scrape
from tests.server.test_streams import join_chunks
from tests.tiny import tiny_model

COMPLETIONS = "/v1/completions"


def make_engine(faults: FaultInjection | None = None, **options: Any) -> AsyncEngine:
    options = {"block_size": 4, "num_kv_blocks": 8, "max_num_batched_tokens": 32, **options}
    return AsyncEngine(Engine(tiny_model(), EngineConfig(model="tiny", **options), faults))


def body_of(number: int = 0, /, **fields: Any) -> dict[str, Any]:
    """Two of these need 6 blocks each: more than there are."""
    return {"prompt": prompt_of(7, number), "temperature": 0, "max_tokens": 17, **fields}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def post_all(server: Server, bodies: list[dict[str, Any]]) -> list[Any]:
    answers = await asyncio.gather(*(server.post(COMPLETIONS, body) for body in bodies))
    assert [status for status, _ in answers] == [200] * len(bodies)
    return [body for _, body in answers]


def without_timings(answer: dict[str, Any]) -> dict[str, Any]:
    """What two runs of a request have in common; cached tokens depend on what came before."""
    usage = {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}
    seeds = [info["seed"] for info in answer["pyengine"]["choices"]]
    return {"choices": answer["choices"], "usage": usage, "seeds": seeds}


async def test_three_apis_give_one_answer(start_server: StartServer) -> None:
    config = EngineConfig(model="tiny", block_size=4, num_kv_blocks=64)
    server = await start_server(AsyncEngine(Engine(tiny_model(letters=True), config)))
    messages = [{"role": "user", "content": "a"}]
    common = {"model": MODEL_NAME, "temperature": 0}
    chat, response, message, events = await asyncio.gather(
        server.post("/v1/chat/completions", {**common, "messages": messages, "max_tokens": 17}),
        server.post("/v1/responses", {**common, "input": "a", "max_output_tokens": 17}),
        server.post("/v1/messages", {**common, "messages": messages, "max_tokens": 17}),
        read_deltas(server, {**common, "input": "a", "max_output_tokens": 17}),
    )
    text = chat[1]["choices"][0]["message"]["content"]
    assert text
    assert response[1]["output"][0]["content"][0]["text"] == text
    assert message[1]["content"][0]["text"] == text
    assert "".join(events) == text


async def read_deltas(server: Server, body: dict[str, Any]) -> list[str]:
    """The pieces of text in a stream of /v1/responses."""
    stream = await server.openai.responses.create(**body, stream=True)
    return [event.delta async for event in stream if event.type == "response.output_text.delta"]


async def test_streams_of_preempted_requests_say_what_whole_answers_say(
    start_server: StartServer, gate: Gate
) -> None:
    roomy = await start_server(make_engine(num_kv_blocks=64))
    engine = make_engine(FaultInjection(before_stage=gate))
    tight = await start_server(engine)
    bodies = [body_of(number, seed=1) for number in range(3)]
    expected = [await post_all(roomy, [body]) for body in bodies]
    usage = {"stream_options": {"include_usage": True}}
    calls = asyncio.gather(*(tight.stream(COMPLETIONS, {**body, **usage}) for body in bodies))
    await until(lambda: len(engine._streams) == len(bodies))  # they run at the same time
    gate.open()
    streams = await calls
    assert engine.stats().num_preemptions >= 1
    answers = [join_chunks(chunks) for *chunks, _done in streams]
    for answer, [whole] in zip(answers, expected, strict=True):
        assert without_timings(answer) == without_timings(whole)
    timings = [answer["pyengine"]["choices"][0]["timings"] for answer in answers]
    victims = [t for t in timings if t["num_preemptions"]]
    assert victims
    assert all(t["stalled_ms"] > 0 and t["num_recomputed_tokens"] > 0 for t in victims)
    for t in timings:
        assert 0 <= t["queue_wait_ms"] <= t["time_to_first_token_ms"] <= t["total_ms"]
        assert t["total_ms"] == pytest.approx(t["queue_wait_ms"] + t["execution_ms"])


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2, "temperature": 1.0, "seed": 5},
        {"logprobs": 3},
        {"temperature": 1.0, "seed": 3, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    ],
)
async def test_a_stream_says_what_the_whole_answer_says(
    start_server: StartServer, fields: dict[str, Any]
) -> None:
    server = await start_server(make_engine(num_kv_blocks=32, enable_prefix_caching=False))
    body = {**body_of(seed=1), **fields}
    [whole] = await post_all(server, [body])
    *chunks, _done = await server.stream(
        COMPLETIONS, {**body, "stream_options": {"include_usage": True}}
    )
    assert without_timings(join_chunks(chunks)) == without_timings(whole)


async def test_the_seed_that_is_told_replays_the_choice(start_server: StartServer) -> None:
    server = await start_server(make_engine(num_kv_blocks=32))
    [first] = await post_all(server, [body_of(n=3, temperature=1.0)])
    for choice, info in zip(first["choices"], first["pyengine"]["choices"], strict=True):
        [again] = await post_all(server, [body_of(temperature=1.0, seed=info["seed"])])
        assert again["choices"][0]["text"] == choice["text"]


async def test_what_can_never_be_served_is_refused_at_once_and_the_next_is_served(
    start_server: StartServer,
) -> None:
    server = await start_server(make_engine())
    status, body = await server.post(COMPLETIONS, body_of(prompt=prompt_of(20), max_tokens=30))
    assert status == 400
    assert body["error"]["param"] == "max_tokens"
    await post_all(server, [body_of(prompt=prompt_of(20), max_tokens=13)])
    await post_all(server, [body_of()])


@pytest.mark.parametrize(
    ("field", "value"), [("prompt", [272]), ("stop_token_ids", [272]), ("logit_bias", {"272": 1})]
)
async def test_ids_outside_the_vocabulary_are_refused_by_field(
    start_server: StartServer, field: str, value: object
) -> None:
    server = await start_server(make_engine())
    status, body = await server.post(COMPLETIONS, body_of(**{field: value}))
    assert (status, body["error"]["param"]) == (400, field)
    await post_all(server, [body_of()])


async def test_a_failed_step_fails_its_request_alone(start_server: StartServer) -> None:
    def throw(stage: str, step: int) -> None:
        if (stage, step) == ("forward", 3):
            raise ZeroDivisionError("injected")

    server = await start_server(make_engine(FaultInjection(before_stage=throw)))
    status, body = await server.post(COMPLETIONS, body_of())
    assert (status, body["error"]["code"]) == (500, "step_failed")
    await post_all(server, [body_of(1)])
    assert (await scrape(server))["pyengine:num_used_kv_blocks"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_lost_client_frees_its_blocks_within_two_steps(
    start_server: StartServer, stream: bool
) -> None:
    engine = make_engine(num_kv_blocks=128)
    server = await start_server(engine)
    staying = asyncio.create_task(
        server.post(COMPLETIONS, body_of(1, max_tokens=200, ignore_eos=True))
    )
    leaving = asyncio.create_task(
        server.post(COMPLETIONS, body_of(2, max_tokens=400, ignore_eos=True, stream=stream))
    )
    await until(lambda: engine.stats().num_running == 2)
    leaving.cancel()
    await until(lambda: engine.stats().num_aborted_requests == 1)
    assert engine.stats().num_running <= 1
    status, body = await staying
    assert (status, body["usage"]["completion_tokens"]) == (200, 200)
    await until(lambda: engine.stats().num_used_blocks == 0)


async def test_a_full_queue_turns_newcomers_away_and_serves_those_it_took(
    start_server: StartServer,
) -> None:
    server = await start_server(make_engine(max_num_seqs=1, max_num_waiting=4))
    answers = await asyncio.gather(
        *(server.post(COMPLETIONS, body_of(k, max_tokens=20)) for k in range(20))
    )
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 5


async def test_the_queue_is_bounded_where_blocks_are_short_and_places_are_not(
    start_server: StartServer, gate: Gate
) -> None:
    server = await start_server(
        make_engine(FaultInjection(before_stage=gate), max_num_seqs=64, max_num_waiting=4)
    )
    calls = [asyncio.create_task(server.post(COMPLETIONS, body_of(k))) for k in range(20)]
    await until(lambda: sum(call.done() for call in calls) + len(server.engine._streams) == 20)
    # Each of the 8 blocks holds 4 tokens of a prompt of 7, and 4 may wait.
    assert len(server.engine._streams) == 4 + 4
    gate.open()
    statuses = [status for status, _ in await asyncio.gather(*calls)]
    assert (statuses.count(200), statuses.count(429)) == (8, 12)


async def test_metrics_tell_the_truth_about_preempted_requests(
    start_server: StartServer, gate: Gate
) -> None:
    engine = make_engine(FaultInjection(before_stage=gate), enable_prefix_caching=False)
    server = await start_server(engine)
    calls = asyncio.create_task(post_all(server, [body_of(number) for number in range(3)]))
    await until(lambda: len(engine._streams) == 3)
    gate.open()
    await calls
    samples = await scrape(server)
    assert samples["pyengine:num_preemptions_total"] >= 1
    assert samples["pyengine:recomputed_tokens_total"] > 0
    assert samples["pyengine:prompt_tokens_total"] == 3 * 7
    assert samples["pyengine:time_to_first_token_seconds_count"] == 3
    assert samples["pyengine:e2e_request_latency_seconds_count"] == 3
    assert samples["pyengine:generation_tokens_total"] <= 3 * 17
    for gauge in ("num_requests_running", "num_requests_waiting", "num_used_kv_blocks"):
        assert samples[f"pyengine:{gauge}"] == 0


async def test_health_tells_of_a_step_that_does_not_end_until_it_has(
    start_server: StartServer, gate: Gate
) -> None:
    engine = make_engine(FaultInjection(before_stage=gate))
    server = await start_server(engine, health_timeout=0.2)
    assert (await server.get("/health"))[0] == 200
    call = asyncio.create_task(server.post(COMPLETIONS, body_of()))
    await until(lambda: engine.stalled_s > 0.2)
    status, body = await server.get("/health")
    assert (status, body["error"]["code"]) == (503, "engine_stalled")
    gate.open()
    assert (await call)[0] == 200
    assert (await server.get("/health"))[0] == 200


async def test_a_drain_lets_streams_finish() -> None:
    options = ServerOptions(served_model_names=("tiny",), port=0, shutdown_timeout=30)
    engine = make_engine(num_kv_blocks=128)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with bind(options) as sock:
        serving = asyncio.create_task(serve(engine, options, sock, None, ready.set_result))
        url = await ready

        async def stream(number: int) -> list[Any]:
            body = body_of(number, max_tokens=300, ignore_eos=True, stream=True)
            async with http.post(url + COMPLETIONS, json=body) as response:
                return read_events(await response.read())

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            calls = [asyncio.create_task(stream(number)) for number in range(2)]
            await until(lambda: engine.stats().num_running == 2)
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: not engine.is_running)
            async with http.post(url + COMPLETIONS, json=body_of()) as response:
                assert response.status == 503
            for call in calls:
                *chunks, done = await call
                assert done == "[DONE]"
                assert join_chunks(chunks)["choices"][0]["finish_reason"] == "length"
            assert await serving == 0
    assert engine.stats().num_used_blocks == 0
