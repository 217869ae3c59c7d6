"""Streams: the same as whole answers, in pieces."""

import asyncio
from typing import Any

import pytest

from tests.server.conftest import Server, StartServer, read_events
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine, Script, answer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPTS = {
    COMPLETIONS: {"prompt": ["one", "two"]},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
INVALID_UTF8 = [97, 0xF0, 0x9F, 98, 0xE2, 0x82, 257]

SCRIPTS: dict[str, Script] = {
    "words": answer("hello world", "and more"),
    "long": answer("é🙂👨‍👩‍👧 " * 20),
    "invalid": lambda request, index: INVALID_UTF8,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"max_tokens": 5},
    {"stop": "lo w"},
    {"stop": ["wor", "or"], "include_stop_str_in_output": True},
    {"stop": "never said"},
    {"stop_token_ids": [ord("o")], "n": 2},
    {"skip_special_tokens": False},
    {"ignore_eos": True, "max_tokens": 15},
    {"min_tokens": 3, "stop": "h"},
]
LOGPROBS = {
    COMPLETIONS: [{}, {"logprobs": 0}, {"logprobs": 3}],
    CHAT: [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}],
}


def join_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream's chunks as the whole answer that they stand for."""
    whole: dict[str, Any] = {"choices": {}}
    for chunk in chunks:
        once = ("usage", "pyengine", "prompt_token_ids")
        whole.update({k: chunk[k] for k in once if chunk.get(k) is not None})
        for piece in chunk["choices"]:
            choice = whole["choices"].setdefault(piece["index"], {"index": piece["index"]})
            if "delta" in piece:
                message = choice.setdefault("message", {"content": ""})
                message["content"] += piece["delta"].get("content", "")
                message.update({k: v for k, v in piece["delta"].items() if k == "role"})
            else:
                choice["text"] = choice.get("text", "") + piece["text"]
            if piece["logprobs"] is not None:
                logprobs = choice.get("logprobs") or {}
                for name, values in piece["logprobs"].items():
                    logprobs[name] = logprobs.get(name, []) + values
                choice["logprobs"] = logprobs
            choice.setdefault("logprobs", None)
            if "token_ids" in piece:
                choice["token_ids"] = choice.get("token_ids", []) + piece["token_ids"]
            if "prompt_token_ids" in piece:
                assert "prompt_token_ids" not in choice
                choice["prompt_token_ids"] = piece["prompt_token_ids"]
            for name in ("finish_reason", "stop_reason"):
                choice[name] = piece[name] if piece[name] is not None else choice.get(name)
    whole["choices"] = [whole["choices"][index] for index in sorted(whole["choices"])]
    return whole


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_a_stream_says_what_the_whole_answer_says(
    start_server: StartServer, path: str, script: Script
) -> None:
    # An engine for each, so that both see an empty prefix cache and draw equal seeds.
    for_streams = await start_server(FakeAsyncEngine(script))
    for_wholes = await start_server(FakeAsyncEngine(script))
    for options in OPTIONS:
        for logprobs in LOGPROBS[path]:
            body = {**PROMPTS[path], "max_tokens": 30, **options, **logprobs}
            status, whole = await for_wholes.post(path, body)
            assert status == 200
            *chunks, done = await for_streams.stream(
                path, {**body, "stream_options": {"include_usage": True}}
            )
            assert done == "[DONE]"
            expected = {name: whole[name] for name in ("choices", "usage", "pyengine")}
            assert join_chunks(chunks) == expected, body


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_the_chunks_of_a_stream_share_what_names_it(server: Server, path: str) -> None:
    *chunks, done = await server.stream(path, {**PROMPTS[path], "model": "alias"})
    assert done == "[DONE]"
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["model"] == "alias"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_usage_comes_last_if_asked_for_and_is_null_before(server: Server, path: str) -> None:
    body = {**PROMPTS[path], "stream_options": {"include_usage": True}}
    *chunks, usage_chunk, _ = await server.stream(path, body)
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    assert usage_chunk["choices"] == []
    assert usage_chunk["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("options", [{}, {"stream_options": {}}])
async def test_there_is_no_usage_unless_asked_for(
    server: Server, options: dict[str, object]
) -> None:
    *chunks, _ = await server.stream(COMPLETIONS, {"prompt": "a", **options})
    assert all("usage" not in chunk for chunk in chunks)


async def test_timings_come_with_the_last_chunk_that_has_a_choice(server: Server) -> None:
    body = {"prompt": ["a", "long"], "stream_options": {"include_usage": True}}
    *chunks, last, _usage, _done = await server.stream(COMPLETIONS, body)
    assert [info["index"] for info in last["pyengine"]["choices"]] == [0, 1]
    assert all("pyengine" not in chunk for chunk in chunks)


async def test_usage_counts_tokens_where_text_is_held_back(start_server: StartServer) -> None:
    """Clients that count chunks would see 2 tokens: two wait for the stop string to be told
    apart, four make one character, and the last has no text."""
    server = await start_server(FakeAsyncEngine(answer("ab🙂")))
    body = {"prompt": "x", "stop": "abc", "stream_options": {"include_usage": True}}
    *chunks, usage_chunk, _ = await server.stream(COMPLETIONS, body)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["ab🙂", ""]
    assert usage_chunk["usage"]["completion_tokens"] == 7


async def test_a_step_is_one_write_however_many_choices_it_moves(
    start_server: StartServer,
) -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True)
    server = await start_server(engine)
    body = {"prompt": ["p", "q"], "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    call = asyncio.ensure_future(server.http.post(server.url + COMPLETIONS, json=body))
    await engine.until(lambda: len(engine.open) == 2)
    engine.release()
    async with await call as response:
        chunks = [chunk async for chunk in response.content.iter_chunks()]
    assert all(is_whole for _, is_whole in chunks)
    writes = [read_events(data) for data, _ in chunks if data]
    assert [len(events) for events in writes] == [4, 4, 4, 6]  # the last: usage and [DONE] too
    assert all(
        [event["choices"][0]["index"] for event in events[:4]] == [0, 1, 2, 3] for events in writes
    )


async def test_chunks_come_as_they_are_made(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True)
    server = await start_server(engine)
    stream_call = server.openai.completions.create(model=MODEL_NAME, prompt="p", stream=True)
    call = asyncio.ensure_future(stream_call)
    await engine.until(lambda: len(engine.open) == 1)
    engine.step()
    stream = await call
    for letter in "abc":
        chunk = await anext(stream)
        assert chunk.choices[0].text == letter
        engine.step()
    assert [chunk.choices[0].finish_reason async for chunk in stream] == ["stop"]


async def test_a_stream_is_not_to_be_cached_or_held_up_by_proxies(server: Server) -> None:
    body = {"prompt": "a", "stream": True}
    async with server.http.post(server.url + COMPLETIONS, json=body) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
