"""POST /v1/responses, asked by the openai client."""

import asyncio
from typing import Any

import openai
import pytest

from tests.server.conftest import Server, StartServer
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine, answer

PATH = "/v1/responses"


def prompt_of(server: Server) -> str:
    return bytes(server.engine.requests[-1].prompt_token_ids).decode()


async def test_a_text_is_answered(server: Server) -> None:
    response = await server.openai.responses.create(
        model=MODEL_NAME, input="hi", instructions="be kind", metadata={"a": "b"}, store=False
    )
    assert prompt_of(server) == "[system]be kind[user]hi[assistant]"
    assert response.output_text == "0[SYSTEM]BE KIND[USER]HI[ASSISTANT]"
    assert (response.status, response.model, response.store) == ("completed", MODEL_NAME, False)
    assert (response.instructions, response.metadata) == ("be kind", {"a": "b"})
    assert response.usage is not None
    assert response.usage.input_tokens == len("[system]be kind[user]hi[assistant]")
    assert (
        response.usage.total_tokens == response.usage.input_tokens + len(response.output_text) + 1
    )


async def test_a_conversation_goes_on_from_the_items_of_answers(server: Server) -> None:
    first = await server.openai.responses.create(model=MODEL_NAME, input="a")
    history: Any = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"type": "message", "role": "user", "content": "b"},
    ]
    await server.openai.responses.create(model=MODEL_NAME, input=history)
    assert prompt_of(server) == f"[system]d[user]a[assistant]{first.output_text}[user]b[assistant]"


async def test_the_sampling_fields_reach_the_engine(server: Server) -> None:
    response = await server.openai.responses.create(
        model=MODEL_NAME, input="a", temperature=0.5, top_p=0.25, max_output_tokens=3
    )
    params = server.engine.requests[-1].params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.25, 3)
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.5, 0.25, 3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "0[U"


@pytest.mark.parametrize(("limit", "last"), [(None, "completed"), (2, "incomplete")])
async def test_a_stream_has_openais_events_and_the_answers_text(
    start_server: StartServer, limit: int | None, last: str
) -> None:
    server = await start_server(FakeAsyncEngine(answer("abc")))
    given: dict[str, Any] = {"model": MODEL_NAME, "input": "a", "max_output_tokens": limit}
    whole = await server.openai.responses.create(**given)
    stream = await server.openai.responses.create(**given, stream=True)
    events = [event async for event in stream]
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * len(deltas),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        last,
    ]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(deltas) == whole.output_text
    end = events[-1].response  # type: ignore[union-attr]
    changing = {"id", "created_at", "output", "usage"}
    assert end.model_dump(exclude=changing) == whole.model_dump(exclude=changing)
    assert end.output_text == whole.output_text
    assert events[0].response.status == "in_progress"  # type: ignore[union-attr]


async def test_the_clients_stream_helper_understands_it(server: Server) -> None:
    async with server.openai.responses.stream(model=MODEL_NAME, input="a") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "0[USER]A[ASSISTANT]"


async def test_a_stream_that_fails_ends_with_an_event_that_says_so(
    start_server: StartServer,
) -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True)
    server = await start_server(engine)
    call = asyncio.create_task(
        server.openai.responses.create(model=MODEL_NAME, input="a", stream=True)
    )
    await engine.until(lambda: bool(engine.open))
    engine.step()
    stream = await call
    engine.fail_step()
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "step 7 failed" in last.response.error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"tools": []}, "tools"),
        ({"background": True}, "background"),
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].name"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content",
        ),
        (
            {"input": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
            "input",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cant_be_done_is_refused_by_name(
    server: Server, fields: dict[str, Any], param: str, stream: bool
) -> None:
    status, body = await server.post(PATH, {"input": "a", "stream": stream, **fields})
    assert (status, body["error"]["param"]) == (400, param)
    assert param.rpartition(".")[2] in body["error"]["message"]
    assert server.engine.requests == []


async def test_an_unknown_model_is_not_found(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="isn't served here"):
        await server.openai.responses.create(model="gpt-9", input="a")
