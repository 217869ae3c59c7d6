"""What is wrong with a request is told in OpenAI's error object, with the field at fault."""

import openai
import pytest

from tests.server.conftest import Server, StartServer, check_error
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GENERATION = (COMPLETIONS, CHAT)
INPUT = {COMPLETIONS: {"prompt": "a"}, CHAT: {"messages": [{"role": "user", "content": "a"}]}}


@pytest.mark.parametrize("path", GENERATION)
@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": "hot"}, "temperature", 'must be a valid number, got "hot"'),
        ({"temperature": True}, "temperature", "must be a valid number, got true"),
        ({"temperature": -1}, "temperature", "must be at least 0.0, got -1"),
        ({"top_p": 0}, "top_p", "must be in (0, 1]"),
        ({"top_p": "1"}, "top_p", "number"),
        ({"top_k": 1.5}, "top_k", "must be a valid integer"),
        ({"top_k": -2}, "top_k", "must be at least -1"),
        ({"top_k": 2**31}, "top_k", "must be at most 2147483647"),
        ({"min_p": 2}, "min_p", "must be at most 1.0"),
        ({"n": 0}, "n", "must be at least 1, got 0"),
        ({"n": 129}, "n", "must be at most 128, got 129"),
        ({"n": "2"}, "n", "integer"),
        ({"n": True}, "n", "integer"),
        ({"max_tokens": 0}, "max_tokens", "must be at least 1, got 0"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens", "must be at most 2, got 3"),
        ({"seed": 2**63}, "seed", "must be at most"),
        ({"seed": "x"}, "seed", "integer"),
        ({"stop": [1]}, "stop[0]", "must be a valid string, got 1"),
        ({"stop": 1}, "stop", "must be a valid array"),
        ({"stop": ""}, "stop", "empty"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 strings, got 17"),
        ({"stop": ["x", "x" * 1025]}, "stop", "at most 1024 characters, got one of 1025"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids", "at most 1024 ids, got 1025"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids[0]", "integer"),
        ({"stop_token_ids": [258]}, "stop_token_ids", "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "stop_token_ids"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {}}, "stream_options", "needs stream: true"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "must be at most 20, got 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "must be at least 0"),
        ({"prompt_logprobs": True}, "prompt_logprobs", "integer"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "needs stream: false"),
        ({"cache_salt": ""}, "cache_salt", "must have at least 1 character, got 0"),
        ({"cache_salt": "x" * 257}, "cache_salt", "must have at most 256 characters, got 257"),
        ({"cache_salt": 1}, "cache_salt", "string"),
        ({"timeout": 0}, "timeout", "must be more than 0"),
        ({"timeout": 1e300}, "timeout", "must be at most 1000000000"),
        ({"timeout": "1"}, "timeout", "number"),
        ({"priority": 1.5}, "priority", "integer"),
        ({"priority": 2**31}, "priority", "must be at most 2147483647"),
        ({"return_token_ids": 1}, "return_token_ids", "boolean"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "needs include_usage: true",
        ),
        ({"stream": True, "stream_options": []}, "stream_options", "got []"),
        ({"repetition_penalty": 0}, "repetition_penalty", "must be in (0, 100]"),
        ({"presence_penalty": 3}, "presence_penalty", "must be at most 2.0"),
        ({"frequency_penalty": -3}, "frequency_penalty", "must be at least -2.0"),
        ({"ignore_eos": 1}, "ignore_eos", "boolean"),
        ({"user": 1}, "user", "string"),
        ({"model": 1}, "model", "string"),
        ({"logit_bias": [1]}, "logit_bias", "must be an object of token ids to numbers"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "the keys must be token ids, got 'a'"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "the keys must be token ids, got '-1'"),
        ({"logit_bias": {"01": 1}}, "logit_bias", "the keys must be token ids, got '01'"),
        ({"logit_bias": {"1": True}}, "logit_bias", "the values must be numbers"),
        ({"logit_bias": {"1": "1"}}, "logit_bias", "the values must be numbers"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "must be in [-100, 100], got 101"),
        ({"logit_bias": {"1": -100.5}}, "logit_bias", "must be in [-100, 100], got -100.5"),
        ({"logit_bias": {"1": 10**400}}, "logit_bias", "must be in [-100, 100]"),
        ({"logit_bias": {"258": 1}}, "logit_bias", "logit_bias holds the token id 258"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias", "at most 1024"),
    ],
)
async def test_a_wrong_field_is_named(
    server: Server, path: str, fields: dict[str, object], param: str, message: str
) -> None:
    status, body = await server.post(path, {**INPUT[path], **fields})
    assert status == 400
    code = "unknown_parameter" if "unknown field" in message else None
    check_error(body, message, param, code)
    assert server.engine.requests == []
    status, _ = await server.get("/health")
    assert status == 200


@pytest.mark.parametrize(
    "field",
    [
        *("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs"),
        *("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
async def test_a_number_may_be_too_large_for_a_float(server: Server, field: str, sign: int) -> None:
    status, body = await server.post(COMPLETIONS, {"prompt": "a", field: sign * 10**400})
    assert (status, body["error"]["param"]) == (400, field)


async def test_a_large_value_of_the_wrong_type_is_not_sent_back_whole(server: Server) -> None:
    status, body = await server.post(COMPLETIONS, {"prompt": "a", "temperature": [1] * 100_000})
    assert status == 400
    check_error(body, "got [1, 1,", "temperature")
    assert len(body["error"]["message"]) < 120


async def test_more_prompts_than_the_engine_takes_at_once_are_refused(
    start_server: StartServer,
) -> None:
    server = await start_server(FakeAsyncEngine(max_num_seqs=2, max_num_waiting=3))
    status, body = await server.post(COMPLETIONS, {"prompt": ["a"] * 6})
    assert status == 400
    check_error(body, "6 prompts, but only 2 run at once (max_num_seqs) and 3 may wait", "prompt")
    assert server.engine.requests == []
    status, _ = await server.post(COMPLETIONS, {"prompt": ["a"] * 5})
    assert status == 200


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_are_finite(server: Server, literal: str) -> None:
    headers = {"Content-Type": "application/json"}
    data = f'{{"prompt": "a", "temperature": {literal}}}'
    async with server.http.post(server.url + COMPLETIONS, data=data, headers=headers) as response:
        assert response.status == 400
        check_error(await response.json(), "temperature", "temperature")


@pytest.mark.parametrize(
    "prompt", [3, {}, [], [[]], [1, "a"], ["a", 1], [[1], "a"], [1.5], [True], [None], [["a"]]]
)
async def test_a_prompt_of_another_kind_is_refused(server: Server, prompt: object) -> None:
    status, body = await server.post(COMPLETIONS, {"prompt": prompt})
    assert status == 400
    check_error(body, "prompt: must be a string, a list of strings, a list of", "prompt")


@pytest.mark.parametrize("prompt", [[258], [97, -1], [[97], [2**40]]])
async def test_a_prompt_has_tokens_of_the_vocabulary(server: Server, prompt: object) -> None:
    status, body = await server.post(COMPLETIONS, {"prompt": prompt})
    assert status == 400
    check_error(body, "prompt", "prompt")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"logprobs": 21}, "logprobs", "must be at most 20, got 21"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"echo": 1}, "echo", "boolean"),
        ({"best_of": 2}, "best_of", "best_of must equal n (1), got 2: choices are not ranked"),
        ({"n": 2, "best_of": 3}, "best_of", "best_of must equal n (2), got 3"),
        ({"echo": True, "max_tokens": -1}, "max_tokens", "must be at least 0, got -1"),
        ({"messages": []}, "messages", "unknown field: messages"),
    ],
)
async def test_completions_have_fields_of_their_own(
    server: Server, fields: dict[str, object], param: str, message: str
) -> None:
    status, body = await server.post(COMPLETIONS, {"prompt": "a", **fields})
    assert status == 400
    check_error(body, message, param, "unknown_parameter" if "unknown" in message else None)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"logprobs": 1}, "logprobs", "boolean"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "must be at most 20"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs: true"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "must be at least 1"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "give one of them"),
        ({"prompt": "a"}, "prompt", "unknown field: prompt"),
        ({"tools": []}, "tools", "must have at least 1 item, got 0"),
        ({"messages": []}, "messages", "must have at least 1 item, got 0"),
        ({"messages": "hi"}, "messages", "must be a valid array"),
        ({"messages": ["hi"]}, "messages[0]", "got"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "'user'"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "messages[0].content",
            "a string or a list",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "x": 1}]},
            "messages[0].x",
            "unknown field",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "part 0 is of type 'image_url'; only 'text' is supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
            "messages[0].content",
            "part 0 must hold a type and a text",
        ),
        (
            {"messages": [{"role": "user", "content": ["a"]}]},
            "messages[0].content",
            "part 0 must be an object with a type",
        ),
    ],
)
async def test_chat_has_fields_of_its_own(
    server: Server, fields: dict[str, object], param: str, message: str
) -> None:
    status, body = await server.post(CHAT, {**INPUT[CHAT], **fields})
    assert status == 400
    check_error(body, message, param, "unknown_parameter" if "unknown" in message else None)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {}, "prompt"),
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (CHAT, {}, "messages"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (CHAT, {"messages": [{"content": "a"}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_a_missing_field_is_named(
    server: Server, path: str, body: object, param: str
) -> None:
    status, answer = await server.post(path, body)
    assert status == 400
    check_error(answer, f"{param} is required", param, "missing_required_parameter")


@pytest.mark.parametrize("path", GENERATION)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_not_found(server: Server, path: str, stream: bool) -> None:
    status, body = await server.post(path, {**INPUT[path], "model": "gpt-9", "stream": stream})
    assert status == 404
    check_error(
        body,
        f"the model 'gpt-9' isn't served here; try {MODEL_NAME}, alias",
        "model",
        "model_not_found",
    )


async def test_the_openai_client_raises_its_own_errors(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature must be at least") as caught:
        await server.openai.completions.create(model=MODEL_NAME, prompt="a", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="isn't served here"):
        await server.openai.completions.create(model="gpt-9", prompt="a")
