"""The rounds of a comparison, on fake servers, and the tables that are made of them."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare
from benchmarks.compare import Comparison, choose, parse_args, tables
from benchmarks.comparison_tables import figures_table, pressure_table, ratio_table
from benchmarks.servers import Server, ServerSpec
from benchmarks.serving_load import Exchange, Load, summarize
from tests.benchmarks.fakes import BROKEN, HTTP, WORKER


async def _compare(
    specs: list[ServerSpec], loads: list[str], folder: Path, num_rounds: int
) -> list[dict[str, Any]]:
    comparison = Comparison(specs, loads, folder)
    await comparison.run(num_rounds)
    return comparison.measurements


async def test_every_round_runs_each_load_on_each_server_in_turn(tmp_path: Path) -> None:
    measurements = await _compare([HTTP, WORKER], ["stream", "prefill"], tmp_path, 2)
    order = [(m["round"], m["load"], m["server"]) for m in measurements]
    servers = ("http", "worker")
    started = [(0, "start", server) for server in servers]
    rounds = [(i, load, s) for i in range(2) for load in ("stream", "prefill") for s in servers]
    assert order == started + rounds
    reports = [m["report"] for m in measurements if m["load"] == "stream"]
    assert [report["num_output_tokens"] for report in reports] == [256] * 4


async def test_no_load_finds_its_prompts_in_a_prefix_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds below 0 once made the warm-up's prompts those of a measured load: Python's generator
    takes a seed's absolute value."""
    sent: list[list[int]] = []

    async def run(server: Server, load: Load) -> list[Exchange]:
        sent.extend(load.prompts())
        return await send(server, load)

    send = Server.run
    monkeypatch.setattr(Server, "run", run)
    await _compare([WORKER], ["stream", "prefill", "batch16"], tmp_path, 2)
    starts = [tuple(prompt[:16]) for prompt in sent]
    assert len(set(starts)) == len(starts)


async def test_a_start_is_measured_in_every_round_if_it_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements = await _compare([WORKER], ["start"], tmp_path, 2)
    assert [(m["round"], m["load"]) for m in measurements] == [(0, "start"), (1, "start")]
    assert all(0 < m["ready_s"] < m["first_token_s"] for m in measurements)
    monkeypatch.setattr(compare, "LONGEST_REPEATED_START_S", 0.0)
    assert len(await _compare([WORKER], ["start"], tmp_path, 2)) == 1


async def test_a_server_that_does_not_start_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measurements = await _compare([BROKEN, WORKER], ["stream"], tmp_path, 1)
    assert [m["server"] for m in measurements] == ["worker", "worker"]
    assert "left out: broken ended with status 1" in capsys.readouterr().err


async def test_pressure_compares_the_texts_of_two_pools_of_one_server(tmp_path: Path) -> None:
    changes = ServerSpec("changes", HTTP.command, small_pool="other")
    same = ServerSpec("same", HTTP.command, small_pool="")
    measurements = await _compare([changes, same, WORKER], ["pressure"], tmp_path, 1)
    runs = {(m["server"], m["load"]): m for m in measurements}
    assert ("worker", "roomy") not in runs
    assert runs["changes", "pressure"]["num_equal_texts"] == 0
    assert runs["same", "pressure"]["num_equal_texts"] == 16
    table = pressure_table(measurements, ["changes", "same", "worker"])
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == ["changes", "same"]
    assert "16 of 16" in table


def test_servers_are_chosen_by_name() -> None:
    assert choose([HTTP, WORKER], None) == [HTTP, WORKER]
    assert choose([HTTP, WORKER], ["worker"]) == [WORKER]
    assert choose([HTTP, WORKER], []) == []
    with pytest.raises(ValueError, match="no server is called vllm; there are http, worker"):
        choose([HTTP, WORKER], ["vllm"])


def test_a_bad_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args([str(tmp_path / "none.toml")])
    assert "none.toml" in capsys.readouterr().err


def _measurement(server: str, round_number: int, step_s: float) -> dict[str, Any]:
    exchange = Exchange(0.0, [step_s, 2 * step_s, 3 * step_s], num_output_tokens=3)
    return {
        "server": server,
        "load": "stream",
        "round": round_number,
        "report": vars(summarize([exchange])),
    }


def test_the_tables_show_medians_and_the_median_ratio_of_the_rounds() -> None:
    # Ratios of the rounds: 2, 1 and 4; the ratio of the medians would be 1.
    steps = {"ours": (0.1, 0.2, 0.1), "peer": (0.2, 0.2, 0.4)}
    measurements = [_measurement(s, i, steps[s][i]) for i in range(3) for s in steps]
    name = "one stream, tokens/s"
    assert figures_table(measurements, ["ours", "peer"]).splitlines()[2:] == [
        f"| {name} | 10.0 | 5.0 |"
    ]
    assert ratio_table(measurements, "ours", ["peer", "absent"]).splitlines() == [
        "| ours, ratio to: | ours | peer | absent |",
        "| --- | --- | --- | --- |",
        f"| {name} | 10.0 | 2.00 | - |",
    ]


def test_a_failed_load_has_no_figures() -> None:
    failed = {"server": "peer", "load": "stream", "round": 0, "error": "all 16 requests failed"}
    measurements = [_measurement("ours", 0, 0.1), failed]
    assert "| 10.0 | - |" in tables(measurements, ["ours"], ["peer"])
    assert "all 16 requests failed" in compare.summary(failed)
    tight = {**failed, "load": "pressure"}
    assert "all failed" in pressure_table([tight], ["peer"])
