"""The levels of a sweep, and the command from its options to its file."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.bench_serving import levels, main, parse_args
from benchmarks.servers import Server
from tests.benchmarks.fakes import HTTP


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    server = Server(HTTP, tmp_path / "log")
    await server.start()
    yield server.url
    await server.stop()


def test_levels_are_rates_or_numbers_kept_open_with_prompts_of_their_own() -> None:
    loads = levels(parse_args(["--concurrency", "1", "16", "--seed", "5"]))
    assert [(load.concurrency, load.request_rate) for load in loads] == [(1, None), (16, None)]
    assert [(load.num_requests, load.seed) for load in loads] == [(4, 5), (64, 6)]
    loads = levels(parse_args(["--request-rate", "0.5", "2", "--num-requests", "9"]))
    assert [(load.concurrency, load.request_rate) for load in loads] == [(None, 0.5), (None, 2)]
    assert [load.num_requests for load in loads] == [9, 9]
    assert loads[0].prompts()[0] != loads[1].prompts()[0]


def test_sixteen_are_kept_open_when_nothing_is_said() -> None:
    (load,) = levels(parse_args([]))
    assert (load.concurrency, load.num_requests) == (16, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--concurrency", "4", "0"], "--concurrency must be at least 1"),
        (["--request-rate", "1", "0"], "--request-rate must be above 0"),
        (["--request-rate", "1", "--concurrency", "1"], "not allowed with"),
        (["--shared-prefix-len", "129"], "--shared-prefix-len must be between 0 and --input-len"),
    ],
)
def test_a_mistaken_option_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_args(options)
    assert message in capsys.readouterr().err


async def test_a_sweep_prints_a_row_and_writes_a_result_for_each_level(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    options = ["--url", url, "--request-rate", "50", "200", "--num-requests", "5"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bench_serving", *options, "--json", str(file)
    )
    assert await process.wait() == 0
    output = capfd.readouterr().out.splitlines()
    assert [line[:12].strip() for line in output] == ["level", "50 a second", "200 a second"]
    document = json.loads(file.read_text())
    assert document["label"] == url
    results = document["results"]
    assert [result["load"]["request_rate"] for result in results] == [50, 200]
    assert [result["report"]["num_succeeded"] for result in results] == [5, 5]


def test_a_server_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert "bench_serving: error: " in capsys.readouterr().err
