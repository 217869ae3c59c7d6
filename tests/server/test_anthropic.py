"""POST /v1/messages, asked by the anthropic client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from tests.server.conftest import Server, StartServer
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine, answer

PATH = "/v1/messages"
HI: Any = [{"role": "user", "content": "hi"}]
CALL: dict[str, Any] = {"model": MODEL_NAME, "max_tokens": 100, "messages": HI}


def client_of(server: Server, api_key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key=api_key, max_retries=0)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(server) as client:
        yield client


def prompt_of(server: Server) -> str:
    return bytes(server.engine.requests[-1].prompt_token_ids).decode()


def text_of(message: anthropic.types.Message) -> str:
    [block] = message.content
    assert block.type == "text"
    return block.text


async def test_messages_are_answered(server: Server, client: anthropic.AsyncAnthropic) -> None:
    system: Any = [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]
    message = await client.messages.create(**CALL, system=system, metadata={"user_id": "u"})
    assert prompt_of(server) == "[system]be kind[user]hi[assistant]"
    assert text_of(message) == "0[SYSTEM]BE KIND[USER]HI[ASSISTANT]"
    assert (message.role, message.model) == ("assistant", MODEL_NAME)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens == len(prompt_of(server))
    assert message.usage.output_tokens == len(text_of(message)) + 1


async def test_what_is_cached_is_counted_apart(client: anthropic.AsyncAnthropic) -> None:
    first = await client.messages.create(**CALL)
    second = await client.messages.create(**CALL)
    assert first.usage.cache_read_input_tokens == 0
    assert second.usage.cache_read_input_tokens == first.usage.input_tokens - 1
    assert second.usage.input_tokens == 1


async def test_a_last_message_of_the_assistant_is_continued(
    server: Server, client: anthropic.AsyncAnthropic
) -> None:
    messages: Any = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "Sure"}]}]
    await client.messages.create(**{**CALL, "messages": messages})
    assert prompt_of(server) == "[user]hi[assistant]Sure"


async def test_the_sampling_fields_reach_the_engine(
    server: Server, client: anthropic.AsyncAnthropic
) -> None:
    await client.messages.create(
        **{**CALL, "max_tokens": 3}, extra_body={"temperature": 0.5, "top_p": 0.25, "top_k": 7}
    )
    params = server.engine.requests[-1].params
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.25, 7)
    assert params.max_tokens == 3


@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({}, "abcdef", "end_turn", None),
        ({"max_tokens": 3}, "abc", "max_tokens", None),
        ({"stop_sequences": ["x", "cd"]}, "ab", "stop_sequence", "cd"),
    ],
)
async def test_a_message_tells_why_it_ended_streamed_or_not(
    start_server: StartServer,
    fields: dict[str, Any],
    text: str,
    reason: str,
    sequence: str | None,
) -> None:
    server = await start_server(FakeAsyncEngine(answer("abcdef")))
    async with client_of(server) as client:
        message = await client.messages.create(**{**CALL, **fields})
        async with client.messages.stream(**{**CALL, **fields}) as stream:
            streamed = await stream.get_final_message()
    for got in (message, streamed):
        assert text_of(got) == text
        assert (got.stop_reason, got.stop_sequence) == (reason, sequence)
    assert streamed.usage.output_tokens == message.usage.output_tokens


async def test_a_stream_has_anthropics_events(client: anthropic.AsyncAnthropic) -> None:
    stream = await client.messages.create(**CALL, stream=True)
    kinds = [event.type async for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


async def test_a_stream_that_fails_ends_with_an_error_event(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True)
    server = await start_server(engine)
    async with client_of(server) as client:
        call = asyncio.create_task(client.messages.create(**CALL, stream=True))
        await engine.until(lambda: bool(engine.open))
        engine.step()
        stream = await call
        engine.fail_step()
        with pytest.raises(anthropic.APIError, match="step 7 failed"):
            [event async for event in stream]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"tools": []}, "tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1}}, "thinking"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"system": 3}, "system"),
        ({"stop": "a"}, "stop"),
    ],
)
async def test_what_cant_be_done_is_refused_by_name_in_anthropics_shape(
    server: Server, fields: dict[str, Any], name: str
) -> None:
    status, body = await server.post(PATH, {**CALL, **fields})
    assert (status, body["type"]) == (400, "error")
    assert body["error"]["type"] == "invalid_request_error"
    assert name in body["error"]["message"]
    assert server.engine.requests == []


async def test_the_client_raises_its_own_errors(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(), api_keys=("key",))
    async with client_of(server, "wrong") as client:
        with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
            await client.messages.create(**CALL)
    async with client_of(server, "key") as client:
        assert text_of(await client.messages.create(**CALL)) == "0[USER]HI[ASSISTANT]"
        with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
            await client.messages.create(**{**CALL, "model": "claude"})
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            await client.messages.create(**CALL, extra_body={"temperature": -1})
