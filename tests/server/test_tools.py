"""Tool calling, as the OpenAI client sees it."""

import json
from typing import Any

import openai
import pytest

from pyengine.text.chat_template import ChatTemplate
from tests.server.conftest import Server, StartServer
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine, answer
from tests.server.test_real_engine import make_engine

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Bonn"], "default": None}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
BODY: dict[str, Any] = {
    "model": MODEL_NAME,
    "messages": [{"role": "user", "content": "a"}],
    "tools": [WEATHER, TIME],
}
CALLS = (
    'See: <tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
TEMPLATE = "{{ tools | tojson }}{{ messages | tojson }}"


async def start(start_server: StartServer, text: str = CALLS, **options: Any) -> Server:
    options = {"tool_call_parser": "hermes", **options}
    return await start_server(FakeAsyncEngine(answer(text)), **options)


async def test_an_answer_has_the_calls_that_the_model_wrote(start_server: StartServer) -> None:
    server = await start(start_server)
    completion = await server.openai.chat.completions.create(**BODY)
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("See: ", "tool_calls")
    first, second = choice.message.tool_calls or ()
    assert first.type == second.type == "function"
    assert (first.function.name, first.function.arguments) == ("weather", '{"city": "Köln"}')
    assert (second.function.name, second.function.arguments) == ("time", "{}")
    assert first.id.startswith("call_")
    assert first.id != second.id


async def test_a_stream_has_the_same_calls_in_pieces(start_server: StartServer) -> None:
    server = await start(start_server)
    stream = await server.openai.chat.completions.create(**BODY, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "See: "
    assert chunks[-1].finish_reason == "tool_calls"
    pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls or ()]
    begins = [piece for piece in pieces if piece.id is not None]
    assert [(b.index, b.type, b.function and b.function.name) for b in begins] == [
        (0, "function", "weather"),
        (1, "function", "time"),
    ]
    arguments = ["", ""]
    for piece in pieces:
        assert piece.function is not None
        arguments[piece.index] += piece.function.arguments or ""
    assert arguments == ['{"city": "Köln"}', "{}"]
    assert len(pieces) > 10
    told = [c for c in chunks[1:] if c.delta.content or c.delta.tool_calls or c.finish_reason]
    assert told == chunks[1:], "what is held back makes no chunks"


@pytest.mark.parametrize(
    ("text", "content"), [(CALLS[5:], None), (CALLS, ""), ("no call", ""), ("", "")]
)
async def test_a_stream_that_begins_with_a_call_begins_with_null(
    start_server: StartServer, text: str, content: str | None
) -> None:
    server = await start(start_server, text)
    first, *_ = await server.stream(CHAT, BODY)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": content}


async def test_each_choice_has_its_own_calls(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(answer("no call", CALLS))
    server = await start_server(engine, tool_call_parser="hermes")
    completion = await server.openai.chat.completions.create(**BODY, n=2)
    without, with_calls = completion.choices
    assert (without.message.content, without.finish_reason) == ("no call", "stop")
    assert without.message.tool_calls is None
    assert len(with_calls.message.tool_calls or ()) == 2


async def test_without_text_the_content_is_null(start_server: StartServer) -> None:
    server = await start(start_server, '<tool_call>{"name": "time"}</tool_call>')
    completion = await server.openai.chat.completions.create(**BODY)
    assert completion.choices[0].message.content is None


async def test_calls_can_be_held_to_one(start_server: StartServer) -> None:
    server = await start(start_server)
    completion = await server.openai.chat.completions.create(**BODY, parallel_tool_calls=False)
    [call] = completion.choices[0].message.tool_calls or ()
    assert call.function.name == "weather"


async def test_a_choice_of_none_leaves_the_tools_out(start_server: StartServer) -> None:
    engine = FakeAsyncEngine(answer(CALLS))
    engine.chat_template = ChatTemplate(TEMPLATE)
    server = await start_server(engine)
    completion = await server.openai.chat.completions.create(**BODY, tool_choice="none")
    assert completion.choices[0].message.content == CALLS
    assert completion.choices[0].finish_reason == "stop"
    assert (engine.requests[0].prompt or "").startswith("null")


async def test_an_answer_that_was_cut_says_so(start_server: StartServer) -> None:
    server = await start(start_server)
    completion = await server.openai.chat.completions.create(**BODY, max_tokens=63)
    [choice] = completion.choices
    assert choice.finish_reason == "length"
    [call] = choice.message.tool_calls or ()
    assert '{"city": "Köln"}'.startswith(call.function.arguments)


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
async def test_the_template_gets_tools_calls_and_results(
    start_server: StartServer, path: str
) -> None:
    engine = FakeAsyncEngine(answer("ok"))
    engine.chat_template = ChatTemplate(TEMPLATE)
    server = await start_server(engine, tool_call_parser="hermes")
    call = {"id": "x", "type": "function", "function": {"name": "weather", "arguments": '{"a":1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sun", "tool_call_id": "x"},
    ]
    status, body = await server.post(path, {"messages": messages, "tools": BODY["tools"]})
    assert status == 200, body
    tokens = body["tokens"] if path == TOKENIZE else engine.requests[0].prompt_token_ids
    call["function"] = {"name": "weather", "arguments": {"a": 1}}
    assert bytes(tokens).decode() == json.dumps(BODY["tools"]) + json.dumps(messages)


async def test_an_answer_with_calls_can_be_sent_back_as_it_came(start_server: StartServer) -> None:
    server = await start(start_server)
    completion = await server.openai.chat.completions.create(**BODY)
    message = completion.choices[0].message.model_dump()
    messages = [*BODY["messages"], message]
    messages += [
        {"role": "tool", "tool_call_id": call["id"], "content": "1"}
        for call in message["tool_calls"]
    ]
    assert (await server.post(CHAT, {**BODY, "messages": messages}))[0] == 200


@pytest.mark.parametrize(
    ("tool_choice", "names"),
    [
        ("required", {"weather", "time"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
        ({"type": "function", "function": {"name": "time"}}, {"time"}),
    ],
)
@pytest.mark.parametrize("parser", ["hermes", "llama3", "mistral"])
async def test_a_call_can_be_required(
    start_server: StartServer, tool_choice: Any, names: set[str], parser: str
) -> None:
    """The model's weights are random: it is the grammar that makes it call."""
    server = await start_server(make_engine(num_kv_blocks=64), tool_call_parser=parser)
    for seed in range(3):
        completion = await server.openai.chat.completions.create(
            **{**BODY, "model": "alias"},
            tool_choice=tool_choice,
            parallel_tool_calls=False,
            seed=seed,
        )
        [choice] = completion.choices
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls or ()
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        assert (
            arguments in ([{"city": "Rome"}, {"city": "Bonn"}], [{}])[call.function.name == "time"]
        )


async def test_calls_are_held_to_many_and_long_schemas(start_server: StartServer) -> None:
    server = await start_server(make_engine(num_kv_blocks=64), tool_call_parser="hermes")
    properties = {
        f"field_{k}": {"type": "string", "description": "what it is " * 8} for k in range(8)
    }
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{k}",
                "parameters": {"type": "object", "properties": properties},
            },
        }
        for k in range(60)
    ]
    assert len(json.dumps(tools)) > 60_000
    completion = await server.openai.chat.completions.create(
        **{**BODY, "model": "alias", "tools": tools}, tool_choice="required", max_tokens=8
    )
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 8


async def test_a_call_that_a_stop_string_cut_is_not_said_to_be_whole(
    start_server: StartServer,
) -> None:
    server = await start_server(make_engine(num_kv_blocks=64), tool_call_parser="hermes")
    body = {**BODY, "model": "alias", "tools": [WEATHER], "tool_choice": "required"}
    _, cut = await server.post(CHAT, {**body, "stop": ["om", "on"]})
    [choice] = cut["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] in ("om", "on")
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] in ('{"city": "R', '{"city": "B')


async def test_required_calls_are_the_same_in_a_stream(start_server: StartServer) -> None:
    server = await start_server(make_engine(num_kv_blocks=64), tool_call_parser="hermes")
    body = {**BODY, "model": "alias", "tool_choice": "required", "seed": 3, "max_tokens": 90}
    _, whole = await server.post(CHAT, body)
    calls: list[list[str]] = []
    finish_reason = None
    for event in (await server.stream(CHAT, body))[:-1]:
        [choice] = event["choices"]
        finish_reason = choice["finish_reason"] or finish_reason
        for piece in choice["delta"].get("tool_calls", ()):
            if "id" in piece:
                calls.append([piece["function"]["name"], ""])
            calls[piece["index"]][1] += piece["function"]["arguments"]
    [choice] = whole["choices"]
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    assert calls == [[function["name"], function["arguments"]] for function in functions]
    assert finish_reason == choice["finish_reason"]


STRICT = [{"type": "function", "function": {**WEATHER["function"], "strict": True}}, TIME]


async def test_strict_tools_hold_calls_to_a_grammar(start_server: StartServer) -> None:
    server = await start(start_server)
    body = {**BODY, "tools": STRICT}
    for fields in ({}, {"tool_choice": "none"}):
        assert (await server.post(CHAT, {**body, **fields}))[0] == 200
    held, free = (request.params.grammar for request in server.engine.requests)
    assert held is not None
    assert "Bonn" in held.text
    assert free is None
    server = await start_server(make_engine(num_kv_blocks=64), tool_call_parser="hermes")
    completion = await server.openai.chat.completions.create(
        **{**body, "model": "alias"}, max_tokens=20, seed=1
    )
    assert completion.choices[0].message.content


async def test_strict_is_refused_where_calls_look_like_text(start_server: StartServer) -> None:
    server = await start(start_server, tool_call_parser="llama3")
    status, answer = await server.post(CHAT, {**BODY, "tools": STRICT})
    assert (status, answer["error"]["param"]) == (400, "tools[0].function.strict")
    assert (await server.post(CHAT, {**BODY, "tools": STRICT, "tool_choice": "required"}))[0] == 200


BAD_SCHEMA = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": []}, "tools", "must have at least 1 item, got 0"),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "'function'"),
        ({"tools": [TIME, TIME]}, "tools", "different names"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "pattern",
        ),
        *(
            (
                {"tools": [{"type": "function", "function": {"name": "a", "parameters": schema}}]},
                "tools[0].function.parameters",
                "schema of an object",
            )
            for schema in ({"type": "string"}, {"type": ["object", "null"]})
        ),
        ({"tools": None, "tool_choice": "auto"}, "tool_choice", "needs tools"),
        ({"tools": None, "parallel_tool_calls": True}, "parallel_tool_calls", "needs tools"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
            "response_format excludes tools that are required",
        ),
        ({"tool_choice": "perhaps"}, "tool_choice", 'must be "none", "auto", "required" or {'),
        ({"tool_choice": {"type": "custom"}}, "tool_choice", 'must be "none", "auto"'),
        ({"tool_choice": 1}, "tool_choice", 'must be "none", "auto"'),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "there is no tool 'x'",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].id",
            "required",
        ),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            "messages[0].tool_call_id",
            "required",
        ),
        *(
            (
                {
                    "messages": [
                        {
                            "role": "assistant",
                            "tool_calls": [
                                {"id": "x", "function": {"name": "a", "arguments": arguments}}
                            ],
                        }
                    ]
                },
                "messages[0].tool_calls[0].function.arguments",
                "must be a JSON object, spelled as a string",
            )
            for arguments in ("[]", "{", {}, 0, "[" * 100_000)
        ),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content", "required"),
    ],
)
async def test_what_is_wrong_with_tools_is_told(
    start_server: StartServer, fields: dict[str, Any], param: str, message: str
) -> None:
    server = await start(start_server)
    status, body = await server.post(CHAT, {**BODY, **fields})
    assert (status, body["error"]["param"]) == (400, param), body
    assert message in body["error"]["message"]


async def test_a_schema_that_cant_be_enforced_is_refused(start_server: StartServer) -> None:
    server = await start_server(make_engine(num_kv_blocks=64), tool_call_parser="hermes")
    tools = [{"type": "function", "function": {"name": "x", "parameters": BAD_SCHEMA}}]
    body = {"messages": BODY["messages"], "tools": tools, "tool_choice": "required"}
    status, answer = await server.post(CHAT, body)
    assert (status, answer["error"]["param"]) == (400, "tools")
    assert "not" in answer["error"]["message"]


async def test_tools_need_a_template_that_knows_them(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="chat template knows of none"):
        await server.openai.chat.completions.create(**BODY)
