"""Structured output over HTTP, as OpenAI's and vLLM's clients ask for it."""

import asyncio
import json
import threading
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from pyengine.structured import compiler
from tests.server.conftest import Server, StartServer
from tests.server.test_bad_requests import CHAT, COMPLETIONS, INPUT, check_error
from tests.server.test_real_engine import make_engine, until
from tests.server.test_streams import join_chunks

MODEL = "alias"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "größe": {"type": "integer", "maximum": 99}},
    "required": ["a", "größe"],
    "additionalProperties": False,
}
SAMPLED = {"temperature": 1.0, "seed": 3, "max_tokens": 300}


@pytest.fixture
async def real(start_server: StartServer) -> Server:
    return await start_server(make_engine(num_kv_blocks=256, max_num_seqs=8))


def json_schema(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **fields}}


class Point(BaseModel):
    color: Literal["red", "green"]
    x: int | None
    tags: list[bool]


async def test_the_openai_client_parses_into_a_pydantic_model(real: Server) -> None:
    completion = await real.openai.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Point, **SAMPLED
    )
    assert isinstance(completion.choices[0].message.parsed, Point)
    assert completion.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("strict", [True, False, None])
async def test_a_schema_holds_whether_strict_or_not(
    real: Server, path: str, strict: bool | None
) -> None:
    format_ = json_schema(SCHEMA, strict=strict, description="d")
    body = {**INPUT[path], **SAMPLED, "response_format": format_, "n": 3}
    status, answer = await real.post(path, body)
    assert status == 200
    for choice in answer["choices"]:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert json.loads(text).keys() == {"a", "größe"}
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_json": {"const": [1]}}, {"[1]"}),
        ({"guided_json": '{"const": "x"}'}, {'"x"'}),
        ({"guided_regex": "[a-c]{2}"}, {a + b for a in "abc" for b in "abc"}),
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"guided_grammar": 'start: "a" ("b" | "c")'}, {"ab", "ac"}),
        ({"structured_outputs": {"json": {"enum": [1, 2]}}}, {"1", "2"}),
        ({"structured_outputs": {"regex": "[xy]"}}, {"x", "y"}),
        ({"structured_outputs": {"choice": ["é", "e"]}}, {"é", "e"}),
        ({"structured_outputs": {"grammar": 'root ::= "p" | "q"'}}, {"p", "q"}),
    ],
)
async def test_the_fields_of_vllm_hold_the_output(
    real: Server, fields: dict[str, Any], texts: set[str]
) -> None:
    completion = await real.openai.completions.create(
        model=MODEL, prompt="hi", extra_body=fields, **SAMPLED
    )
    assert completion.choices[0].text.replace(" ", "").replace("\n", "") in texts
    assert completion.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "fields",
    [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}],
)
async def test_a_json_object_begins_as_one_and_is_one_if_it_ends(
    real: Server, fields: dict[str, Any]
) -> None:
    body = {"messages": MESSAGES, **SAMPLED, **fields, "n": 4}
    _, answer = await real.post(CHAT, body)
    for choice in answer["choices"]:
        assert choice["message"]["content"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)


async def test_text_is_what_there_is_without_a_format(real: Server) -> None:
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 5}
    _, plain = await real.post(CHAT, body)
    off: list[dict[str, Any]] = [
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"json_object": False}},
        {"response_format": None, "guided_json": None},
    ]
    for fields in off:
        _, answer = await real.post(CHAT, {**body, **fields})
        assert answer["choices"] == plain["choices"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_says_what_the_whole_answer_says(real: Server, path: str) -> None:
    body = {
        **INPUT[path],
        **SAMPLED,
        "response_format": json_schema(SCHEMA),
        "n": 2,
        "logprobs": True if path == CHAT else 2,
    }
    _, whole = await real.post(path, body)
    *chunks, done = await real.stream(path, body)
    assert done == "[DONE]"
    assert join_chunks(chunks)["choices"] == whole["choices"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"response_format": json_schema({"uniqueItems": True})}, "uniqueItems", "response_format"),
        ({"response_format": json_schema({"type": "zip"})}, "zip", "response_format"),
        ({"guided_json": "{"}, "Expecting", "guided_json"),
        ({"guided_json": 3}, "must be a JSON schema", "guided_json"),
        ({"guided_regex": "a("}, "unclosed group", "guided_regex"),
        ({"guided_json": "a" * 100_001}, "100000 characters", "guided_json"),
        ({"guided_grammar": "start: x"}, "unknown name", "guided_grammar"),
        ({"guided_choice": []}, "at least 1", "guided_choice"),
        ({"guided_choice": ["a", ""]}, "at least 1", "guided_choice[1]"),
        (
            {"structured_outputs": {"regex": "["}},
            "unclosed character class",
            "structured_outputs.regex",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            'is required with type "json_schema"',
            "response_format.json_schema",
        ),
        (
            {"response_format": {**json_schema({}), "type": "text"}},
            'needs type "json_schema"',
            "response_format.json_schema",
        ),
        (
            {"response_format": json_schema({}, name="a b")},
            "must match pattern",
            "response_format.json_schema.name",
        ),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex and response_format both say",
            "response_format",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "both say",
            "structured_outputs.choice",
        ),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_field(
    real: Server, path: str, fields: dict[str, Any], message: str, param: str
) -> None:
    status, body = await real.post(path, {**INPUT[path], **fields})
    assert status == 400
    check_error(body, message, param)
    assert real.engine.stats().num_accepted_requests == 0


# Its work grows with the output.
AMBIGUOUS = {"guided_grammar": "start: s\ns: s? s? s? s? /[a-z]/ s? s?", "ignore_eos": True}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_grammar_that_gets_too_complex_is_the_fault_of_its_request_alone(
    real: Server, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    neighbour = {**INPUT[path], **SAMPLED, "response_format": json_schema(SCHEMA)}
    _, alone = await real.post(path, neighbour)
    body = {**INPUT[path], **SAMPLED, **AMBIGUOUS}
    (status, answer), (_, beside), events = await asyncio.gather(
        real.post(path, body), real.post(path, neighbour), real.stream(path, body)
    )
    message = "500 parser items in one place: make it less ambiguous"
    assert status == 400
    check_error(answer, message, "guided_grammar", "grammar_too_complex")
    *chunks, last = events
    check_error(last, message, "guided_grammar", "grammar_too_complex")
    assert len(chunks) > 20
    assert beside["choices"] == alone["choices"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    await until(lambda: real.engine.stats().num_used_blocks == 0)


async def test_a_grammar_that_is_too_complex_from_the_start_is_a_400(real: Server) -> None:
    properties = {f"p{i}": {"type": "integer"} for i in range(1000)}
    schema = {"type": "object", "properties": properties}
    body = {**INPUT[CHAT], "response_format": json_schema(schema)}
    for stream in (False, True):
        status, answer = await real.post(CHAT, {**body, "stream": stream})
        assert status == 400
        check_error(answer, "fewer optional properties", "response_format", "grammar_too_complex")


async def test_a_grammar_holds_what_is_generated_after_a_message_that_is_continued(
    real: Server,
) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "a"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    _, answer = await real.post(CHAT, {"messages": messages, **fields, "guided_choice": ["ab"]})
    assert answer["choices"][0]["message"]["content"] == "ab"


async def test_compiling_holds_up_no_other_request_and_a_lost_client_leaves_nothing(
    real: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()
    compile_ = compiler.GrammarCompiler.compile

    def slow(self: Any, grammar: Any) -> Any:
        begun.set()
        assert released.wait(30)
        return compile_(self, grammar)

    monkeypatch.setattr(compiler.GrammarCompiler, "compile", slow)
    body = {**INPUT[CHAT], "guided_regex": "[0-9]{5}"}
    staying, leaving = (asyncio.create_task(real.post(CHAT, body)) for _ in range(2))
    await until(begun.is_set)
    status, _ = await real.post(CHAT, {**INPUT[CHAT], "max_tokens": 3})
    assert status == 200
    leaving.cancel()
    released.set()
    status, answer = await staying
    assert (status, len(answer["choices"][0]["message"]["content"])) == (200, 5)
    await until(lambda: real.engine.stats().num_used_blocks == 0)
    assert real.engine.stats().num_accepted_requests <= 3
