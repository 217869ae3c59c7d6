"""What is answered is what /openapi.json says, to the field: none is missing, of another type, or
there without being told of."""

import asyncio
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.server.conftest import Server, StartServer
from tests.server.fakes import FakeAsyncEngine, answer
from tests.server.test_tools import CALLS, TIME, WEATHER

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CONVERSATION = {"messages": [{"role": "user", "content": "a"}]}
TOOLS = {"tools": [WEATHER, TIME]}
ANTHROPIC = {**CONVERSATION, "model": "alias", "max_tokens": 4}
TOKEN_IDS = {"return_token_ids": True, "n": 2}
USAGE = {"stream_options": {"include_usage": True}}
ALL_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def only_told(schema: Any) -> Any:
    """The schema of objects that have no more properties than it names."""
    if isinstance(schema, list):
        return [only_told(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return closed | {name: only_told(value) for name, value in schema.items()}


class Api:
    """What a server says of itself."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = only_told(document)

    def check(self, answer: Any, path: str, method: str, status: int, *, event: bool) -> None:
        response = self._document["paths"][path][method]["responses"][str(status)]
        schema = response["content"]["text/event-stream" if event else "application/json"]["schema"]
        if event:
            done, data = schema["properties"]["data"]["anyOf"]
            schema = done if answer == "[DONE]" else data["contentSchema"]
        components = {"components": self._document["components"]}
        Draft202012Validator({**schema, **components}).validate(answer)


async def read_api(server: Server) -> Api:
    return Api((await server.get("/openapi.json"))[1])


async def post(server: Server, path: str, body: object, headers: dict[str, str]) -> tuple[int, Any]:
    async with server.http.post(server.url + path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def events(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    async with server.http.post(server.url + path, json={**body, "stream": True}) as response:
        assert response.content_type == "text/event-stream"
        lines = (await response.text()).splitlines()
    texts = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a"}),
        (COMPLETIONS, {"prompt": ["a", "b"], "logprobs": 2, "echo": True, **TOKEN_IDS}),
        (COMPLETIONS, {"prompt": [97], "prompt_logprobs": 2, "max_tokens": 1, "stop": "x"}),
        (CHAT, CONVERSATION),
        (CHAT, {**CONVERSATION, **TOKEN_IDS, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**CONVERSATION, "prompt_logprobs": 2, "stop_token_ids": [ord("S")]}),
        (CHAT, {**CONVERSATION, **TOOLS}),
        (RESPONSES, {"input": "a"}),
        (RESPONSES, {"input": "a", "instructions": "b", "max_output_tokens": 1, "user": "me"}),
        (MESSAGES, ANTHROPIC),
        (MESSAGES, {**ANTHROPIC, "max_tokens": 99, "stop_sequences": ["See"]}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [97]}),
    ],
)
async def test_an_answer_is_as_it_says(
    start_server: StartServer, path: str, body: dict[str, Any]
) -> None:
    server = await start_server(FakeAsyncEngine(answer(CALLS)), tool_call_parser="hermes")
    status, got = await server.post(path, body)
    assert status == 200
    (await read_api(server)).check(got, path, "post", 200, event=False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a"}),
        (COMPLETIONS, {"prompt": ["a", "b"], "logprobs": 2, "echo": True, **TOKEN_IDS, **USAGE}),
        (CHAT, {**CONVERSATION, **TOKEN_IDS, **ALL_USAGE, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**CONVERSATION, **TOOLS, **USAGE}),
        (RESPONSES, {"input": "a"}),
        (RESPONSES, {"input": "a", "max_output_tokens": 1}),
        (MESSAGES, ANTHROPIC),
        (MESSAGES, {**ANTHROPIC, "max_tokens": 99, "stop_sequences": ["See"]}),
    ],
)
async def test_each_event_of_a_stream_is_as_it_says(
    start_server: StartServer, path: str, body: dict[str, Any]
) -> None:
    server = await start_server(FakeAsyncEngine(answer(CALLS)), tool_call_parser="hermes")
    api = await read_api(server)
    got = await events(server, path, body)
    assert len(got) > 3
    for event in got:
        api.check(event, path, "post", 200, event=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a"}),
        (CHAT, CONVERSATION),
        (RESPONSES, {"input": "a"}),
        (MESSAGES, ANTHROPIC),
    ],
)
async def test_an_error_is_as_it_says(
    start_server: StartServer, path: str, body: dict[str, Any]
) -> None:
    server = await start_server(FakeAsyncEngine(), api_keys=("key",), max_body_bytes=2000)
    api = await read_api(server)
    key = {"Authorization": "Bearer key"}
    for status, sent, headers in (
        (401, body, {}),
        (400, {}, key),
        (404, {**body, "model": "gpt-9"}, key),
        (413, {**body, "user": "x" * 2000}, key),
        (415, body, {**key, "Content-Type": "text/plain"}),
    ):
        got = await post(server, path, sent, headers)
        assert got[0] == status
        api.check(got[1], path, "post", status, event=False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a"}),
        (CHAT, CONVERSATION),
        (RESPONSES, {"input": "a"}),
        (MESSAGES, ANTHROPIC),
    ],
)
async def test_the_error_that_ends_a_stream_is_as_it_says(
    start_server: StartServer, path: str, body: dict[str, Any]
) -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True)
    server = await start_server(engine)
    api = await read_api(server)
    call = asyncio.create_task(events(server, path, body))
    await engine.until(lambda: bool(engine.open))
    engine.step()
    engine.fail_step()
    got = await call
    assert "error" in got[-1].get("response", got[-1])
    for event in got:
        api.check(event, path, "post", 200, event=True)


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/ping", "/version"])
async def test_what_is_asked_for_is_as_it_says(server: Server, path: str) -> None:
    status, got = await server.get(path)
    assert status == 200
    (await read_api(server)).check(got, path, "get", 200, event=False)


async def test_a_model_is_as_it_says(server: Server) -> None:
    _, got = await server.get("/v1/models/alias")
    (await read_api(server)).check(got, "/v1/models/{model}", "get", 200, event=False)
    status, got = await server.get("/v1/models/gpt-9")
    (await read_api(server)).check(got, "/v1/models/{model}", "get", status, event=False)
