"""The charts of serving: which points make which line, and that pictures are written."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.plot_serving import CHARTS, Line, draw, lines, main
from benchmarks.serving_load import Exchange, Load, summarize


def _result(concurrency: int | None, request_rate: float | None, step_s: float) -> dict[str, Any]:
    load = Load(
        num_requests=1,
        concurrency=concurrency,
        request_rate=request_rate,
        input_len=1,
        output_len=2,
    )
    report = summarize([Exchange(0.0, [step_s, 3 * step_s], num_output_tokens=3)])
    return {"load": dataclasses.asdict(load), "report": dataclasses.asdict(report)}


OURS = {
    "label": "ours",
    "results": [_result(4, None, 0.25), _result(1, None, 0.5), _result(None, 2.0, 0.5)],
}
THEIRS = {"label": "theirs", "results": [_result(1, None, 1.0)]}
THROUGHPUT, TTFT, ITL = CHARTS


def test_a_server_has_a_line_through_its_levels_in_order() -> None:
    assert lines(THROUGHPUT, [OURS, THEIRS]) == [
        [Line("ours", [1, 4], [2.0, 4.0])],
        [Line("theirs", [1], [1.0])],
    ]


def test_percentiles_are_lines_of_servers_that_were_given_rates() -> None:
    assert lines(TTFT, [OURS, THEIRS]) == [
        [Line("ours p50", [2.0], [500.0]), Line("ours p99", [2.0], [500.0])]
    ]
    assert [line.y for line in lines(ITL, [OURS])[0]] == [[1000.0], [1000.0]]


def test_charts_without_points_are_not_drawn(tmp_path: Path) -> None:
    assert draw([THEIRS], tmp_path) == [tmp_path / "throughput_by_concurrency.png"]


def test_the_command_draws_files_as_pictures(tmp_path: Path) -> None:
    files = [tmp_path / "ours.json", tmp_path / "theirs.json"]
    for file, server in zip(files, (OURS, THEIRS), strict=True):
        file.write_text(json.dumps(server))
    main([*map(str, files), "--output-dir", str(tmp_path / "charts")])
    pictures = sorted((tmp_path / "charts").iterdir())
    assert [picture.stem for picture in pictures] == sorted(chart.name for chart in CHARTS)
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
