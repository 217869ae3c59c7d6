"""The benchmark of the operators: its cases run, and its shares are of the right bound."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_ops
from benchmarks.bench_ops import Bounds, Result, all_cases, main, seconds_per_call
from benchmarks.op_case import Case, ModelShape

TINY = ModelShape(
    hidden_size=32,
    intermediate_size=256,
    num_heads=2,
    num_kv_heads=1,
    head_size=16,
    vocab_size=96,
)
BOUNDS = Bounds(bytes_per_s=10.0, flops_per_s={"bfloat16": 100.0, "float32": 50.0})


def test_every_case_can_be_called() -> None:
    cases = list(all_cases(TINY, cold_bytes=0))
    for case in cases:
        assert len(case.calls) == 1
        case.calls[0]()
    assert len({(case.op, case.shape) for case in cases}) == len(cases)


def test_weights_and_caches_have_copies_that_no_processor_holds() -> None:
    cases = {case.shape: case for case in all_cases(TINY, cold_bytes=2**16)}
    assert len(cases["gate|up 1x32x512 bfloat16"].calls) == 2**16 / (2 * 32 * 512)
    assert len(cases["decode 1x1 of 1024"].calls) == 2**16 / (2 * 2 * 1024 * 16)


def test_the_bound_is_the_longer_of_memory_and_arithmetic() -> None:
    memory = Case("a", "", [], num_bytes=20, num_flops=100)
    arithmetic = Case("b", "", [], num_bytes=20, num_flops=150, arithmetic="float32")
    assert BOUNDS.time_s(memory) == (2.0, "memory")
    assert BOUNDS.time_s(arithmetic) == (3.0, "arithmetic")


def test_a_share_is_the_time_of_the_bound_over_that_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_ops, "seconds_per_call", lambda calls: 4.0)
    case = Case("a", "2x3", [], num_bytes=20, num_flops=300)
    assert bench_ops.measure(case, BOUNDS) == Result("a", "2x3", 4.0, 5.0, 75.0, 0.75, "arithmetic")


def test_calls_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(bench_ops.time, "perf_counter", lambda: next(clock) * 0.004)
    called: list[int] = []
    seconds = seconds_per_call([lambda: called.append(0), lambda: called.append(1)])
    assert called == [i % 2 for i in range(len(called))]
    assert seconds == pytest.approx(0.02 / 4)


def test_the_command_writes_the_table_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_ops, "measure_bounds", lambda: BOUNDS)
    monkeypatch.setattr(bench_ops, "ModelShape", lambda: TINY)
    monkeypatch.setattr(bench_ops, "COLD_BYTES", 0)
    monkeypatch.setattr(bench_ops, "seconds_per_call", lambda calls: 1.0)
    file = tmp_path / "ops.json"
    main(["--only", "rms_norm", "gather_logits", "--json", str(file)])
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[3:]]
    assert rows == ["rms_norm"] * 3 + ["gather_logits"]
    results = json.loads(file.read_text())["results"]
    assert [result["op"] for result in results] == rows
