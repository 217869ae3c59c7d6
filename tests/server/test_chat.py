"""/v1/chat/completions, as the OpenAI client sees it."""

import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.server.conftest import Server, StartServer
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine, answer

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def prompt_of(server: Server) -> str | None:
    return server.engine.requests[-1].prompt


async def test_a_chat_completion_has_all_that_openai_promises(server: Server) -> None:
    completion = await server.openai.chat.completions.create(
        model=MODEL_NAME, messages=MESSAGES, n=2
    )
    assert completion.id.startswith("chatcmpl-")
    assert completion.object == "chat.completion"
    first, second = completion.choices
    assert (first.index, first.message.role) == (0, "assistant")
    assert first.message.content == "0[USER]HI[ASSISTANT]"
    assert (second.index, second.message.content) == (1, "1[USER]HI[ASSISTANT]")
    assert first.finish_reason == "stop"
    assert first.logprobs is None
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len("[user]hi[assistant]")  # no <s>: the template's
    assert completion.usage.completion_tokens == 2 * 21


async def test_messages_go_through_the_template(server: Server) -> None:
    await server.openai.chat.completions.create(
        model=MODEL_NAME,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "a", "name": "bob"},
            {"role": "assistant", "content": "b"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}],
            },
        ],
    )
    assert prompt_of(server) == "[system]be brief[user:bob]a[assistant]b[user]c\nd[assistant]"


async def test_an_answer_can_be_sent_back_as_it_came(server: Server) -> None:
    completion = await server.openai.chat.completions.create(model=MODEL_NAME, messages=MESSAGES)
    answer = completion.choices[0].message
    status, _ = await server.post(
        "/v1/chat/completions", {"messages": [*MESSAGES, answer.model_dump()]}
    )
    assert status == 200


async def test_an_answer_may_take_all_the_room_that_is_left(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(answer("x" * 100), max_model_len=50))
    completion = await server.openai.chat.completions.create(model=MODEL_NAME, messages=MESSAGES)
    [choice] = completion.choices
    # The last token is never fed back, so it needs no room.
    assert choice.message.content == "x" * (50 - len("[user]hi[assistant]") + 1)
    assert choice.finish_reason == "length"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_can_be_limited_by_either_name(server: Server, field: str) -> None:
    _, completion = await server.post("/v1/chat/completions", {"messages": MESSAGES, field: 3})
    [choice] = completion["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("0[U", "length")


async def test_every_field_reaches_the_engine(server: Server) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 11, "n": 2}
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "user": "me", **fields}
    status, _ = await server.post("/v1/chat/completions", body)
    assert status == 200
    params = server.engine.requests[0].params
    assert {name: getattr(params, name) for name in fields} == fields
    assert params.logprobs == 3


async def test_logprobs_have_the_shape_of_chat(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(answer("aé")))
    completion = await server.openai.chat.completions.create(
        model=MODEL_NAME, messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    first, second = logprobs.content[:2]
    assert (first.token, first.logprob, first.bytes) == ("a", -1.0, [97])
    assert [(top.token, top.logprob, top.bytes) for top in first.top_logprobs] == [
        ("b", -0.25, [98]),
        ("c", -0.5, [99]),
    ]
    assert (second.token, second.bytes) == ("bytes:\\xc3", [0xC3])


async def test_logprobs_without_a_number_tell_of_the_token_alone(server: Server) -> None:
    completion = await server.openai.chat.completions.create(
        model=MODEL_NAME, messages=MESSAGES, logprobs=True
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert all(entry.top_logprobs == [] for entry in logprobs.content)


async def test_a_stream_begins_with_the_role_of_each_choice(server: Server) -> None:
    stream = await server.openai.chat.completions.create(
        model=MODEL_NAME, messages=MESSAGES, n=2, stream=True
    )
    chunks = [chunk async for chunk in stream]
    opening = [(chunk.choices[0].index, chunk.choices[0].delta) for chunk in chunks[:2]]
    assert [(index, delta.role, delta.content) for index, delta in opening] == [
        (0, "assistant", ""),
        (1, "assistant", ""),
    ]
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[2:])
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


async def test_the_messages_error_of_the_template_is_the_clients(server: Server) -> None:
    messages = [*MESSAGES, {"role": "system", "content": "too late"}]
    status, body = await server.post("/v1/chat/completions", {"messages": messages})
    assert status == 400
    assert body["error"]["param"] == "messages"
    assert "only the first message may be of the system" in body["error"]["message"]


async def test_without_a_template_there_is_no_chat(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(has_template=False))
    status, body = await server.post("/v1/chat/completions", {"messages": MESSAGES})
    assert status == 400
    assert "no chat template: use /v1/completions" in body["error"]["message"]


@pytest.mark.parametrize("content", ["yes", None])
async def test_an_answer_without_calls_may_be_sent_back(
    server: Server, content: str | None
) -> None:
    """Some clients write an empty list of calls into each message; OpenAI's answers have one of
    annotations."""
    messages = [
        {"role": "user", "content": "a", "tool_calls": []},
        {"role": "assistant", "content": content, "tool_calls": [], "annotations": []},
        {"role": "user", "content": "b"},
    ]
    status, _ = await server.post("/v1/chat/completions", {"messages": messages})
    assert status == 200
    [request] = server.engine.requests
    assert request.prompt == f"[user]a[assistant]{content or ''}[user]b[assistant]"


async def test_no_top_logprobs_may_be_asked_for_without_logprobs(server: Server) -> None:
    completion = await server.openai.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "a"}],
        logprobs=False,
        top_logprobs=0,
    )
    assert completion.choices[0].logprobs is None
