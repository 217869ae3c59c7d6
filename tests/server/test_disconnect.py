"""A client that goes away takes its requests with it, and nobody else's."""

import asyncio
from typing import Any

import pytest

from tests.server.conftest import Server, StartServer
from tests.server.fakes import FakeAsyncEngine, answer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": ["a", "b"], "n": 2, "max_tokens": 100},
    CHAT: {"messages": [{"role": "user", "content": "a"}], "n": 4, "max_tokens": 100},
}


def leave(call: asyncio.Future[Any]) -> None:
    """Closes the client's connection, which nobody else uses."""
    call.cancel()


async def start_call(server: Server, path: str, **fields: object) -> asyncio.Task[Any]:
    """A call that has reached the engine."""
    engine = server.engine
    num_requests = len(engine.requests) + (2 if path == COMPLETIONS else 1)
    call = asyncio.create_task(server.post(path, {**BODIES[path], **fields}))
    await engine.until(lambda: len(engine.requests) == num_requests)
    return call


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_steps", [0, 3])
async def test_what_a_lost_client_asked_for_is_aborted(
    start_server: StartServer, path: str, stream: bool, num_steps: int
) -> None:
    engine = FakeAsyncEngine(answer("x" * 100), held=True)
    server = await start_server(engine)
    call = await start_call(server, path, stream=stream)
    for _ in range(num_steps):
        engine.step()
    request_ids = list(engine.open)
    leave(call)
    await engine.until(lambda: not engine.open)
    assert sorted(engine.aborted) == sorted(request_ids)


async def test_a_client_lost_in_the_queue_frees_its_place(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True, max_num_seqs=4)
    server = await start_server(engine)
    running = await start_call(server, CHAT)
    waiting = await start_call(server, CHAT)
    assert (engine.stats().num_running, engine.stats().num_waiting) == (4, 4)
    leave(waiting)
    await engine.until(lambda: engine.stats().num_waiting == 0)
    engine.release()
    status, body = await running
    assert status == 200
    assert [choice["message"]["content"] for choice in body["choices"]] == ["abc"] * 4
    assert len(engine.aborted) == 1


async def test_a_client_lost_in_mid_stream_doesnt_disturb_the_others(
    start_server: StartServer,
) -> None:
    engine = FakeAsyncEngine(answer("abcdef"), held=True)
    server = await start_server(engine)
    staying = asyncio.create_task(server.stream(COMPLETIONS, {"prompt": "a"}))
    await engine.until(lambda: len(engine.open) == 1)
    engine.step()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    body = b'{"prompt": "b", "stream": true}'
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await engine.until(lambda: len(engine.open) == 2)
    engine.step()
    await reader.readuntil(b"data: ")
    writer.close()
    await writer.wait_closed()
    await engine.until(lambda: len(engine.open) == 1)
    engine.release()
    *chunks, done = await staying
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcdef"


async def test_a_client_that_leaves_after_the_last_token_aborts_nothing(server: Server) -> None:
    async with server.http.post(
        server.url + COMPLETIONS, json={"prompt": "a", "stream": True}
    ) as response:
        await response.read()
    assert server.engine.aborted == []
    assert not server.engine.open


async def test_a_call_whose_last_prompt_is_refused_runs_none(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(held=True, max_num_seqs=1, max_num_waiting=5)
    server = await start_server(engine)
    leading = await start_call(server, CHAT, n=2)
    num_before = len(engine.requests)
    status, body = await server.post(COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2})
    assert status == 429
    assert body["error"]["code"] == "queue_full"
    assert len(engine.requests) == num_before
    leave(leading)
