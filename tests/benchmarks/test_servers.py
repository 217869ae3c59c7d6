"""The processes that are compared: read from a file, started, stopped while others are measured."""

import os
from pathlib import Path

import psutil
import pytest

from benchmarks.servers import Server, ServerError, ServerSpec, read_specs
from benchmarks.serving_load import Load
from tests.benchmarks.fakes import FAKE, HTTP, WORKER

LOAD = Load(num_requests=3, concurrency=2, input_len=4, output_len=5)


def test_a_file_names_our_servers_and_their_peers(tmp_path: Path) -> None:
    path = tmp_path / "servers.toml"
    path.write_text(
        '[ours.a]\ncommand = "a --port {port}"\nsmall_pool = "--small"\n'
        '[peers.b]\ncommand = "b"\nprotocol = "worker"\nenv = { X = "1" }\n'
    )
    ours, peers = read_specs(path)
    assert ours == [ServerSpec("a", "a --port {port}", small_pool="--small")]
    assert peers == [ServerSpec("b", "b", protocol="worker", env={"X": "1"})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[peers.b]\ncomand = "b"\n', "comand"),
        ('[peers.b]\nprotocol = "http"\n', "command"),
        ('[peer.b]\ncommand = "b"\n', r"expected tables ours.NAME and peers.NAME, got {'peer'}"),
        ('[peers.b]\ncommand = "b"\nprotocol = "grpc"\n', "b: protocol must be http or worker"),
        ("[peers", "servers.toml: Expected"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "servers.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_specs(path)


@pytest.mark.parametrize("spec", [HTTP, WORKER], ids=lambda spec: spec.name)
async def test_a_server_answers_when_started_and_holds_still_between_loads(
    tmp_path: Path, spec: ServerSpec
) -> None:
    server = Server(spec, tmp_path / "log")
    assert await server.start() > 0
    try:
        process = psutil.Process(server.pid)
        for _ in range(2):
            async with server.running(), server.watching_rss() as sizes:
                exchanges = await server.run(LOAD)
            assert os.waitid(os.P_PID, server.pid, os.WSTOPPED) is not None
            assert [exchange.error for exchange in exchanges] == [None] * 3
            assert [len(exchange.event_times_s) for exchange in exchanges] == [5] * 3
            assert [exchange.num_output_tokens for exchange in exchanges] == [5] * 3
            sums = [str(sum(prompt)) for prompt in LOAD.prompts()]
            texts = [exchange.text.replace(" ", "") for exchange in exchanges]
            assert texts == [5 * number for number in sums]
            assert max(sizes) > 2**20
    finally:
        await server.stop()
    assert not process.is_running()


async def test_a_small_pool_is_asked_for_by_further_arguments(tmp_path: Path) -> None:
    spec = ServerSpec("http", HTTP.command, small_pool="small")
    server = Server(spec, tmp_path / "log", small_pool=True)
    await server.start()
    try:
        exchanges = await server.run(LOAD)
    finally:
        await server.stop()
    assert all(exchange.text.endswith("small") for exchange in exchanges)


@pytest.mark.parametrize("protocol", ["http", "worker"])
async def test_a_server_that_ends_is_an_error_with_the_end_of_its_log(
    tmp_path: Path, protocol: str
) -> None:
    server = Server(ServerSpec("broken", f"{FAKE} broken", protocol=protocol), tmp_path / "log")
    with pytest.raises(ServerError, match=r"broken ended(.|\n)*no such model"):
        await server.start()
    await server.stop()


async def test_a_server_that_died_between_loads_is_an_error(tmp_path: Path) -> None:
    server = Server(HTTP, tmp_path / "log")
    await server.start()
    await server.stop()
    with pytest.raises(ServerError, match="http ended with status"):
        await server.run(LOAD)


async def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    server = Server(ServerSpec("absent", "/nowhere/serve"), tmp_path / "log")
    with pytest.raises(ServerError, match=r"absent: .*No such file"):
        await server.start()
