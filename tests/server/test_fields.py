"""Which fields bodies take: OpenAI's, and no others unless the server is lenient."""

import json
import logging

import openai
import pytest

from tests.server.conftest import Server, StartServer, check_error
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("max_token", "unknown field: max_token; did you mean max_tokens?"),
        ("temprature", "unknown field: temprature; did you mean temperature?"),
        ("zzz", "unknown field: zzz"),
    ],
)
async def test_an_unknown_field_is_refused_with_the_name_it_may_be_a_slip_of(
    server: Server, given: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await server.openai.chat.completions.create(
            model=MODEL_NAME,
            messages=MESSAGES,  # type: ignore[arg-type]
            extra_body={given: 1},
        )
    assert caught.value.body == {
        "message": message,
        "type": "invalid_request_error",
        "param": given,
        "code": "unknown_parameter",
    }


async def test_an_unknown_field_within_another_is_named_with_its_place(server: Server) -> None:
    body = {"messages": [*MESSAGES, {"role": "user", "content": "b", "nam": "x"}]}
    status, answer = await server.post(CHAT, body)
    assert (status, answer["error"]["param"]) == (400, "messages[1].nam")
    assert answer["error"]["message"] == "unknown field: messages[1].nam; did you mean name?"


async def test_a_field_is_suggested_by_the_name_that_clients_write(server: Server) -> None:
    given = {"type": "json_schema", "json_schema": {"name": "x", "shema": {}}}
    _, answer = await server.post(CHAT, {"messages": MESSAGES, "response_format": given})
    assert answer["error"]["message"].endswith(".shema; did you mean schema?")


async def test_an_unknown_field_that_is_null_counts_as_left_out(server: Server) -> None:
    status, _ = await server.post(CHAT, {"messages": MESSAGES, "zzz": None})
    assert status == 200


async def test_a_long_unknown_field_is_refused_at_once(server: Server) -> None:
    status, answer = await server.post(CHAT, {"messages": MESSAGES, "max_tokens" * 100_000: 1})
    assert (status, answer["error"]["code"]) == (400, "unknown_parameter")
    assert len(answer["error"]["message"]) < 150


async def test_a_lenient_server_ignores_unknown_fields_and_logs_each_once(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start_server(FakeAsyncEngine(), ignore_unknown_fields=True)
    content = [{"type": "text", "text": "a", "w": 0}]
    body = {"messages": [{"role": "user", "content": content, "x": 1}], "y": 2}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            status, _ = await server.post(CHAT, body)
            assert status == 200
    assert sorted(caplog.messages) == [
        f"ignoring the unknown field '{name}', here and in later requests"
        for name in ("w", "x", "y")
    ]
    assert (await server.post(CHAT, {**body, "temperature": "hot"}))[0] == 400


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": MESSAGES, "reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"messages": MESSAGES, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": MESSAGES, "structural_tag": "{}"}, "structural_tag"),
        ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}, "tools"),
    ],
)
async def test_a_lenient_server_still_refuses_what_it_knows_and_hasnt_got(
    start_server: StartServer, path: str, fields: dict[str, object], param: str
) -> None:
    """Left out, these would change the answer: a tool that is never called, for one."""
    server = await start_server(FakeAsyncEngine(), ignore_unknown_fields=True)
    status, answer = await server.post(path, fields)
    assert status == 400
    check_error(answer, f"{param} isn't supported: ", param, "unsupported_parameter")


async def test_the_log_of_a_lenient_server_isnt_its_clients_to_fill(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start_server(FakeAsyncEngine(), ignore_unknown_fields=True)
    with caplog.at_level(logging.WARNING):
        status, _ = await server.post(
            CHAT, {"messages": MESSAGES, **{f"{i}\n" + "x" * 1000: 1 for i in range(200)}}
        )
    assert status == 200
    assert len(caplog.messages) == 100
    assert max(map(len, caplog.messages)) < 200
    assert not any("\n" in message for message in caplog.messages)


async def test_what_openai_takes_without_effect_is_taken(server: Server) -> None:
    completion = await server.openai.chat.completions.create(
        model=MODEL_NAME,
        messages=MESSAGES,  # type: ignore[arg-type]
        user="me",
        metadata={"a": "b"},
        modalities=["text"],
        prompt_cache_key="key",
        safety_identifier="me",
        service_tier="auto",
        store=False,
    )
    assert completion.choices[0].message.content == "0[USER]A[ASSISTANT]"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"store": True}, "store", "answers aren't kept here"),
        ({"service_tier": "flex"}, "service_tier", "'auto' or 'default'"),
        ({"modalities": ["audio"]}, "modalities[0]", "'text'"),
        ({"metadata": {"a": 1}}, "metadata.a", "must be a valid string, got 1"),
        (
            {"metadata": {str(i): "" for i in range(17)}},
            "metadata",
            "at most 16 items, got 17",
        ),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "must have at most 512 characters, got 513"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "isn't supported: what a model's"),
        ({"functions": []}, "functions", "isn't supported: use tools"),
        ({"audio": {}}, "audio", "isn't supported: answers are text"),
        ({"bad_words": ["a"]}, "bad_words", "isn't supported: use logit_bias"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "isn't supported"),
    ],
)
async def test_what_cant_be_had_is_refused(
    server: Server, fields: dict[str, object], param: str, message: str
) -> None:
    status, answer = await server.post(CHAT, {"messages": MESSAGES, **fields})
    assert status == 400
    assert answer["error"]["param"] == param
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"suffix": "b"}, "the prompt is continued"),
        ({"max_completion_tokens": 3}, "use max_tokens"),
        ({"use_beam_search": True}, "sample n choices"),
    ],
)
async def test_what_completions_cant_have_is_refused(
    server: Server, fields: dict[str, object], hint: str
) -> None:
    status, answer = await server.post("/v1/completions", {"prompt": "a", **fields})
    [name] = fields
    assert status == 400
    check_error(answer, f"{name} isn't supported: {hint}", name, "unsupported_parameter")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
    ],
)
async def test_parts_other_than_text_are_refused(server: Server, part: dict[str, object]) -> None:
    content = [{"type": "text", "text": "look"}, part]
    status, answer = await server.post(CHAT, {"messages": [{"role": "user", "content": content}]})
    assert status == 400
    assert answer["error"]["param"] == "messages[0].content"
    assert f"part 1 is of type {part['type']!r}; only 'text' is supported: no images" in json.dumps(
        answer, ensure_ascii=False
    )
