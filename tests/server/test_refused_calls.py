"""Calls that no server could serve, or that must not be taken for something else."""

from pyengine.config import EngineConfig
from pyengine.engine import AsyncEngine, Engine
from tests.server.conftest import StartServer
from tests.tiny import tiny_model

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "a"}]


async def start(start_server: StartServer, **options):
    config = EngineConfig(model="tiny", block_size=4, num_kv_blocks=64, **options)
    return await start_server(AsyncEngine(Engine(tiny_model(letters=True), config)))


async def test_more_sequences_than_may_ever_wait_are_a_bad_request(start_server: StartServer):
    server = await start(start_server, max_num_seqs=2, max_num_waiting=2)
    body = {"prompt": ["a"] * 4, "n": 2, "max_tokens": 1}
    status, answer = await server.post(COMPLETIONS, body)
    assert (status, answer["error"]["param"]) == (400, "prompt")


async def test_a_template_variable_may_have_any_name(start_server: StartServer):
    server = await start(start_server)
    body = {"messages": USER, "max_tokens": 1, "chat_template_kwargs": {"self": 1}}
    status, _ = await server.post(CHAT, body)
    assert status == 200


async def test_a_grammar_that_is_not_compiled_in_time_is_a_timeout(start_server: StartServer):
    server = await start(start_server)
    body = {"prompt": "a", "max_tokens": 1, "guided_regex": "(a?b?c?d?)" * 900, "timeout": 1e-6}
    status, answer = await server.post(COMPLETIONS, body)
    assert (status, answer["error"]["code"]) == (504, "timeout")


async def test_fields_of_vllm_that_there_are_not_are_told_apart_from_slips(
    start_server: StartServer,
):
    server = await start(start_server)
    for path, fields in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "a"})):
        status, answer = await server.post(path, {**fields, "structural_tag": "{}"})
        assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
        assert answer["error"]["param"] == "structural_tag"
