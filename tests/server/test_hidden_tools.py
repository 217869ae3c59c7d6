"""Tools and calls on models whose chat templates show neither: nothing is taken and left out."""

from typing import Any

import pytest

from pyengine.text.chat_template import ChatTemplate
from tests.server.conftest import StartServer
from tests.server.fakes import FakeAsyncEngine, answer
from tests.server.test_tools import BODY, CALLS, CHAT, STRICT, TOKENIZE

TEMPLATE = "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}"
TIME_CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


def engine_of(template: str, text: str = CALLS) -> FakeAsyncEngine:
    engine = FakeAsyncEngine(answer(text))
    engine.chat_template = ChatTemplate(template)
    return engine


def conversation_of(content: str | None, *calls: tuple[str, str]) -> list[dict[str, Any]]:
    """A question, an answer with calls, and a result."""
    tool_calls = [
        {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": content, "tool_calls": tool_calls},
        {"role": "tool", "content": "sun", "tool_call_id": "x"},
    ]


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}])
async def test_tools_that_nothing_tells_the_model_of_are_refused(
    start_server: StartServer, path: str, fields: dict[str, Any]
) -> None:
    server = await start_server(engine_of(TEMPLATE), tool_call_parser="hermes")
    body = {"messages": BODY["messages"], "tools": BODY["tools"], **fields}
    status, told = await server.post(path, body)
    assert (status, told["error"]["param"]) == (400, "tools")
    assert "chat template doesn't show them" in told["error"]["message"]
    assert "tool_choice that is required or names a tool" in told["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "time"}}},
        {"tool_choice": "none"},
        {"tools": STRICT},
    ],
)
async def test_tools_are_taken_where_a_grammar_or_nothing_depends_on_them(
    start_server: StartServer, path: str, fields: dict[str, Any]
) -> None:
    server = await start_server(engine_of(TEMPLATE), tool_call_parser="hermes")
    body = {"messages": BODY["messages"], "tools": BODY["tools"], **fields}
    assert (await server.post(path, body))[0] == 200


@pytest.mark.parametrize(
    "template",
    [
        "{{ tools | tojson if tools }}" + TEMPLATE,
        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}" + TEMPLATE,
        # This one can't be tried without what the client is to give.
        "{{ style + (tools | tojson) }}" + TEMPLATE,
    ],
)
async def test_tools_are_taken_where_the_template_shows_them(
    start_server: StartServer, template: str
) -> None:
    server = await start_server(engine_of(template), tool_call_parser="hermes")
    status, completion = await server.post(CHAT, {**BODY, "chat_template_kwargs": {"style": ""}})
    assert status == 200
    assert len(completion["choices"][0]["message"]["tool_calls"]) == 2
    assert "time" in server.engine.requests[0].prompt


@pytest.mark.parametrize(
    ("parser", "content", "calls", "expected"),
    [
        ("hermes", None, [("time", "")], TIME_CALL),
        (
            "hermes",
            "See: ",
            [("weather", '{"city":"Köln"}'), ("time", "{}")],
            CALLS,
        ),
        (
            "mistral",
            "",
            [("time", "{}"), ("time", '{"zone":"Köln"}')],
            '[{"name": "time", "arguments": {}}, {"name": "time", "arguments": {"zone": "Köln"}}]',
        ),
        ("llama3", None, [("time", "{}")], '{"name": "time", "parameters": {}}'),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
async def test_calls_that_are_sent_back_become_text(
    start_server: StartServer,
    path: str,
    parser: str,
    content: str | None,
    calls: list[tuple[str, str]],
    expected: str,
) -> None:
    """Calls vanished from the prompt."""
    server = await start_server(engine_of(TEMPLATE), tool_call_parser=parser)
    status, told = await server.post(path, {"messages": conversation_of(content, *calls)})
    assert status == 200, told
    requests = server.engine.requests
    token_ids = told["tokens"] if path == TOKENIZE else requests[0].prompt_token_ids
    assert bytes(token_ids).decode() == f"[user]a[assistant]{expected}[tool]sun"


async def test_an_answer_sent_back_reads_as_the_model_wrote_it(start_server: StartServer) -> None:
    server = await start_server(engine_of(TEMPLATE), tool_call_parser="hermes")
    body = {**BODY, "tools": STRICT}
    _, completion = await server.post(CHAT, body)
    message = completion["choices"][0]["message"]
    await server.post(CHAT, {**body, "messages": [*BODY["messages"], message]})
    assert server.engine.requests[1].prompt == f"[user]a[assistant]{CALLS}"


async def test_calls_are_refused_where_their_text_isnt_known(start_server: StartServer) -> None:
    engine = engine_of(TEMPLATE)
    server = await start_server(engine)
    body = {"messages": conversation_of(None, ("time", "{}"))}
    status, told = await server.post(CHAT, body)
    assert (status, told["error"]["param"]) == (400, "messages")
    assert "chat template doesn't show tool_calls" in told["error"]["message"]
