"""Fields beyond the common ones, over HTTP, on a real engine where numbers matter."""

import asyncio
import time

import openai
import pytest

from pyengine.engine import FaultInjection
from tests.engine.clock import Clock
from tests.engine.test_async_engine import Gate
from tests.server.conftest import Server, StartServer
from tests.server.test_metrics import scrape
from tests.server.test_real_engine import make_engine, until

MODEL = "alias"
GREEDY = {"temperature": 0, "max_tokens": 4}
MESSAGES = [{"role": "user", "content": "hi"}]


async def test_logit_bias_decides_what_is_said(start_server: StartServer) -> None:
    server = await start_server(make_engine(num_kv_blocks=64))
    bias = {str(ord("x")): 100}
    completion = await server.openai.completions.create(
        model=MODEL, prompt="hi", logit_bias=bias, **GREEDY
    )
    assert completion.choices[0].text == "xxxx"
    chat = await server.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, logit_bias=bias, **GREEDY
    )
    assert chat.choices[0].message.content == "xxxx"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeout_is_honoured_in_the_queue(
    start_server: StartServer, gate: Gate, stream: bool
) -> None:
    engine = make_engine(FaultInjection(before_stage=gate), num_kv_blocks=64, max_num_seqs=1)
    server = await start_server(engine)
    running = asyncio.create_task(
        server.openai.completions.create(
            model=MODEL, prompt="long", max_tokens=40, extra_body={"ignore_eos": True}
        )
    )
    await gate.let_pass(engine, 2)
    waiting = asyncio.create_task(
        server.openai.completions.create(
            model=MODEL, prompt="late", stream=stream, extra_body={"timeout": 1e-6}
        )
    )
    await until(lambda: len(engine._streams) == 2)
    await gate.let_pass(engine, 2)
    with pytest.raises(openai.APIStatusError) as caught:
        await waiting
    assert caught.value.status_code == 504
    assert (caught.value.code, caught.value.type) == ("timeout", "server_error")
    assert engine.stats().num_running == 1
    gate.open()
    assert (await running).choices[0].finish_reason == "length"
    assert (await scrape(server))["pyengine:requests_timed_out_total"] == 1


async def test_a_timeout_ends_a_stream_with_an_error_and_frees_its_blocks(
    start_server: StartServer, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    engine = make_engine(FaultInjection(before_stage=gate), num_kv_blocks=64)
    server = await start_server(engine)
    body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "n": 2, "timeout": 60}
    events = asyncio.create_task(server.stream("/v1/completions", body))
    await gate.let_pass(engine, 3)
    clock.jump(61)
    gate.open()
    *chunks, error = await events
    assert chunks
    assert all("choices" in chunk for chunk in chunks)
    assert error["error"]["code"] == "timeout"
    await until(lambda: engine.stats().num_used_blocks == 0)


async def test_priority_and_timeout_reach_the_engine(server: Server) -> None:
    extra = {"priority": -2, "timeout": 1.5}
    await server.openai.completions.create(model=MODEL, prompt="a", extra_body=extra)
    await server.openai.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra)
    requests = server.engine.requests
    assert [(r.priority, r.timeout_s) for r in requests] == [(-2, 1.5)] * 2


async def test_a_request_that_matters_more_overtakes_those_that_wait(
    start_server: StartServer, gate: Gate
) -> None:
    engine = make_engine(FaultInjection(before_stage=gate), num_kv_blocks=64, max_num_seqs=1)
    server = await start_server(engine)
    finished: list[int] = []

    async def call(priority: int) -> None:
        await server.openai.completions.create(
            model=MODEL, prompt="a", extra_body={"priority": priority, "ignore_eos": True}
        )
        finished.append(priority)

    calls = []
    for number, priority in enumerate([0, 5, -1, 3]):
        calls.append(asyncio.create_task(call(priority)))
        await until(lambda number=number: len(engine._streams) == number + 1)
        if number == 0:
            await gate.let_pass(engine, 1)  # it runs before the others come
    gate.open()
    await asyncio.gather(*calls)
    assert finished == [0, -1, 3, 5]


async def test_a_cache_salt_keeps_prefixes_apart(start_server: StartServer) -> None:
    server = await start_server(make_engine(num_kv_blocks=64))

    async def num_cached_tokens(**extra: str) -> int:
        completion = await server.openai.completions.create(
            model=MODEL, prompt="a prompt of some length", temperature=0, extra_body=extra
        )
        assert completion.usage is not None
        return completion.usage.to_dict()["prompt_tokens_details"]["cached_tokens"]

    assert await num_cached_tokens() == 0
    assert await num_cached_tokens(cache_salt="mine") == 0
    assert await num_cached_tokens(cache_salt="theirs") == 0
    assert await num_cached_tokens(cache_salt="mine") > 0
    assert await num_cached_tokens() > 0


async def test_the_time_that_it_takes_to_encode_a_prompt_counts(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded_ns: list[int] = []
    encode = server.engine.tokenizer.encode

    def timed(text: str) -> list[int]:
        encoded_ns.append(time.monotonic_ns())
        return encode(text)

    monkeypatch.setattr(server.engine.tokenizer, "encode", timed)
    before_ns = time.monotonic_ns()
    await server.openai.completions.create(model=MODEL, prompt="a")
    assert before_ns <= server.engine.requests[0].arrival_ns <= encoded_ns[0]
