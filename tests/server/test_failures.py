"""What the engine can't do is told with the right status, or in the stream that has begun."""

import asyncio
from typing import Any

import openai
import pytest

from tests.server.conftest import StartServer
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine, answer

COMPLETIONS = "/v1/completions"
BODY: dict[str, Any] = {"prompt": "a"}


@pytest.mark.parametrize("stream", [False, True])
async def test_too_many_waiting_requests_are_turned_away_at_once(
    start_server: StartServer, stream: bool
) -> None:
    engine = FakeAsyncEngine(answer("ok"), held=True, max_num_seqs=1, max_num_waiting=4)
    server = await start_server(engine)
    body = {**BODY, "stream": stream}

    async def send() -> tuple[int, str | None, float]:
        start = asyncio.get_running_loop().time()
        async with server.http.post(server.url + COMPLETIONS, json=body) as response:
            await response.read()
            seconds = asyncio.get_running_loop().time() - start
            return response.status, response.headers.get("Retry-After"), seconds

    calls = [asyncio.create_task(send()) for _ in range(20)]
    refused: list[tuple[int, str | None, float]] = []
    while len(refused) < 15:  # the engine is held: only the refused can be answered
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        refused += [call.result() for call in done]
        calls = [call for call in calls if not call.done()]
    assert all((status, retry_after) == (429, "1") for status, retry_after, _ in refused)
    engine.release()
    accepted = await asyncio.gather(*calls)
    assert [status for status, _, _ in accepted] == [200] * 5


async def test_the_openai_client_knows_the_429(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(held=True, max_num_seqs=1, max_num_waiting=1)
    server = await start_server(engine)
    first = asyncio.create_task(server.post(COMPLETIONS, {**BODY, "n": 2}))
    await engine.until(lambda: len(engine.open) == 1)
    with pytest.raises(openai.RateLimitError, match="try again later") as caught:
        await server.openai.completions.create(model=MODEL_NAME, prompt="b")
    assert caught.value.code == "queue_full"
    engine.release()
    assert (await first)[0] == 200


async def test_a_failed_step_is_a_500_that_names_the_request(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(held=True)
    server = await start_server(engine)
    headers = {"X-Request-Id": "my-request"}

    async def send() -> tuple[int, Any]:
        async with server.http.post(
            server.url + COMPLETIONS, json={"prompt": ["a", "b"]}, headers=headers
        ) as response:
            return response.status, await response.json()

    call = asyncio.create_task(send())
    await engine.until(lambda: len(engine.open) == 2)
    engine.step()
    engine.fail_step()
    status, body = await call
    assert status == 500
    assert body["error"] == {
        "message": "step 7 failed: boom (request my-request)",
        "type": "server_error",
        "param": None,
        "code": "step_failed",
    }
    engine.release()
    status, _ = await server.post(COMPLETIONS, BODY)
    assert status == 200


async def test_a_stream_that_has_begun_ends_with_an_error_event(
    start_server: StartServer,
) -> None:
    engine = FakeAsyncEngine(held=True)
    server = await start_server(engine)
    call = asyncio.create_task(server.stream(COMPLETIONS, BODY))
    await engine.until(lambda: len(engine.open) == 1)
    engine.step()
    engine.fail_step()
    chunk, error = await call  # and no [DONE]
    assert chunk["choices"][0]["text"] == "0"
    assert error["error"]["code"] == "step_failed"


async def test_the_openai_client_raises_what_a_stream_ends_with(
    start_server: StartServer,
) -> None:
    engine = FakeAsyncEngine(held=True)
    server = await start_server(engine)
    call = asyncio.ensure_future(
        server.openai.completions.create(model=MODEL_NAME, prompt="a", stream=True)
    )
    await engine.until(lambda: len(engine.open) == 1)
    engine.step()
    stream = await call
    assert (await anext(stream)).choices[0].text == "0"
    engine.fail_step()
    with pytest.raises(openai.APIError, match="step 7 failed"):
        await anext(stream)


async def test_a_stream_that_fails_before_it_begins_has_a_status(
    start_server: StartServer,
) -> None:
    engine = FakeAsyncEngine(held=True)
    server = await start_server(engine)
    call = asyncio.create_task(server.post(COMPLETIONS, {**BODY, "stream": True}))
    await engine.until(lambda: len(engine.open) == 1)
    engine.fail_step()
    status, body = await call
    assert (status, body["error"]["code"]) == (500, "step_failed")


async def test_a_dead_engine_fails_what_is_open_and_refuses_the_rest(
    start_server: StartServer,
) -> None:
    engine = FakeAsyncEngine(held=True)
    server = await start_server(engine)
    call = asyncio.create_task(server.post(COMPLETIONS, BODY))
    await engine.until(lambda: len(engine.open) == 1)
    engine.die()
    status, body = await call
    assert status == 500
    assert "the roof fell in" in body["error"]["message"]
    status, body = await server.post(COMPLETIONS, BODY)
    assert (status, body["error"]["code"]) == (503, "engine_stopped")
    status, body = await server.get("/health")
    assert status == 503
    assert "the roof fell in" in body["error"]["message"]
