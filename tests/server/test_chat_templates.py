"""What goes into the chat template, over HTTP."""

import pytest

from pyengine.text.chat_template import ChatTemplate
from tests.server.conftest import Server, StartServer
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}]
VARIABLES = "{{ messages[0].content }}{{ style }}{{ enable_thinking is false }}"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "[user]a[assistant]b [assistant]"),
        ({"add_generation_prompt": True}, "[user]a[assistant]b [assistant]"),
        ({"add_generation_prompt": False}, "[user]a[assistant]b "),
        ({"continue_final_message": True}, "[user]a[assistant]b "),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            "[user]a[assistant]b ",
        ),
    ],
)
async def test_clients_choose_what_the_prompt_ends_with(
    server: Server, fields: dict[str, bool], prompt: str
) -> None:
    await server.openai.chat.completions.create(
        model=MODEL_NAME,
        messages=MESSAGES,  # type: ignore[arg-type]
        extra_body=fields,
    )
    assert server.engine.requests[-1].prompt == prompt
    status, answer = await server.post(TOKENIZE, {"messages": MESSAGES, **fields})
    assert (status, bytes(answer["tokens"])) == (200, prompt.encode())


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
async def test_templates_get_variables(start_server: StartServer, path: str) -> None:
    engine = FakeAsyncEngine()
    engine.chat_template = ChatTemplate(VARIABLES)
    server = await start_server(engine)
    kwargs = {"style": "!", "enable_thinking": False}
    body = {"messages": MESSAGES, "chat_template_kwargs": kwargs}
    status, answer = await server.post(path, body)
    assert status == 200
    tokens = answer["tokens"] if path == TOKENIZE else engine.requests[0].prompt_token_ids
    assert bytes(tokens) == b"a!True"


async def test_calls_without_text_go_through_templates_that_take_contents_for_text(
    start_server: StartServer,
) -> None:
    engine = FakeAsyncEngine()
    engine.chat_template = ChatTemplate(
        "{% for m in messages %}{{ m.content + ';' }}"
        "{% for call in m.tool_calls %}{{ call.function.name }}{% endfor %}{% endfor %}"
    )
    server = await start_server(engine, tool_call_parser="hermes")
    call = {"id": "x", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "sun", "tool_call_id": "x"}
    status, answer = await server.post(TOKENIZE, {"messages": [*MESSAGES, calls, result]})
    assert (status, bytes(answer["tokens"])) == (200, b"a;b ;;weathersun;")


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "excludes add_generation_prompt",
        ),
        (
            {"chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs",
            "must not hold messages",
        ),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "must not hold tools"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "got []"),
        ({"add_generation_prompt": 1}, "add_generation_prompt", "boolean"),
    ],
)
async def test_template_fields_are_checked(
    server: Server, path: str, fields: dict[str, object], param: str, message: str
) -> None:
    status, answer = await server.post(path, {"messages": MESSAGES, **fields})
    assert (status, answer["error"]["param"]) == (400, param)
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no') }}", "the chat template failed: no"),
        ("{{ nothing.at_all }}", "the chat template failed: 'nothing' is undefined"),
        ("{{ messages.__class__ }}{{ messages.__class__.x }}", "unsafe"),
        ("{{ messages.append(1) }}", "access to attribute 'append'"),
        ("{{ range(10**9) }}", "Range too big"),
        (
            "{% for i in range(9999) %}{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}"
            "{% endfor %}",
            "it wrote more than 67108864 characters",
        ),
    ],
)
async def test_what_goes_wrong_in_a_template_is_told(
    start_server: StartServer, source: str, message: str
) -> None:
    engine = FakeAsyncEngine()
    engine.chat_template = ChatTemplate(source)
    server = await start_server(engine)
    status, answer = await server.post(CHAT, {"messages": MESSAGES})
    assert (status, answer["error"]["param"]) == (400, "messages")
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "input"),
    [
        ("/v1/completions", {"prompt": "[user]abcdef[assistant]"}),
        ("/v1/completions", {"prompt": list(b"[user]abcdef[assistant]")}),
        (CHAT, {"messages": [{"role": "user", "content": "abcdef"}]}),
    ],
)
async def test_prompts_are_cut_to_their_last_tokens(
    start_server: StartServer, path: str, input: dict[str, object]
) -> None:
    engine = FakeAsyncEngine(max_model_len=20)
    server = await start_server(engine)
    for num_tokens, max_tokens, prompt in [
        (14, 1, "def[assistant]"),
        (1, 1, "]"),
        (-1, 1, "er]abcdef[assistant]"),
        (-1, 5, "bcdef[assistant]"),
    ]:
        fields = {"truncate_prompt_tokens": num_tokens, "max_tokens": max_tokens}
        status, answer = await server.post(path, {**input, **fields})
        assert status == 200, answer
        assert bytes(engine.requests[-1].prompt_token_ids) == prompt.encode()
        assert answer["usage"]["prompt_tokens"] == len(prompt)
    for wrong in (0, -2):
        status, answer = await server.post(path, {**input, "truncate_prompt_tokens": wrong})
        assert (status, answer["error"]["param"]) == (400, "truncate_prompt_tokens")


async def test_a_prompt_that_is_short_enough_stays_whole(server: Server) -> None:
    body = {"messages": MESSAGES, "truncate_prompt_tokens": 4096}
    assert (await server.post(CHAT, body))[0] == 200
    assert server.engine.requests[0].prompt == "[user]a[assistant]b [assistant]"
