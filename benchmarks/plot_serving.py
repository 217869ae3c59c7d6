"""Charts of what `bench_serving --json` wrote, one line for each server.

    python -m benchmarks.plot_serving ours.json theirs.json --output-dir charts

Draws throughput over concurrency, and times to first token and between tokens over the request
rate, of the levels that the files hold. Needs the extra `pyengine[bench]`.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Line:
    """One line of a chart: the points of a server, from left to right."""

    label: str
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Chart:
    name: str  # of the file, without its ending
    level: str  # the field of the load on the x axis
    x_label: str
    y_label: str
    values: tuple[tuple[str, ...], ...]  # paths into the report, each a line of every server


CHARTS = (
    Chart(
        "throughput_by_concurrency",
        "concurrency",
        "requests kept open",
        "output tokens/s",
        (("output_tokens_per_s",),),
    ),
    Chart(
        "ttft_by_rate",
        "request_rate",
        "requests/s",
        "time to first token, ms",
        (("ttft_ms", "p50"), ("ttft_ms", "p99")),
    ),
    Chart(
        "itl_by_rate",
        "request_rate",
        "requests/s",
        "time between tokens, ms",
        (("itl_ms", "p50"), ("itl_ms", "p99")),
    ),
)


def lines(chart: Chart, servers: list[dict[str, Any]]) -> list[list[Line]]:
    """For each server that has levels of the chart, a line for each of the chart's values."""
    groups = []
    for server in servers:
        levels = [
            (result["load"][chart.level], result["report"])
            for result in server["results"]
            if result["load"][chart.level] is not None
        ]
        levels.sort(key=lambda level: level[0])
        if levels:
            groups.append([_line(server["label"], path, levels) for path in chart.values])
    return groups


def _line(label: str, path: tuple[str, ...], levels: list[tuple[float, Any]]) -> Line:
    ys = []
    for _, value in levels:
        for key in path:
            value = value[key]
        ys.append(value)
    return Line(" ".join([label, *path[1:]]), [x for x, _ in levels], ys)


def draw(servers: list[dict[str, Any]], output_dir: Path) -> list[Path]:
    """Writes a PNG for each chart that has lines, and returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths = []
    for chart in CHARTS:
        groups = lines(chart, servers)
        if not groups:
            continue
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for number, group in enumerate(groups):
            for line, style in zip(group, ("-", "--"), strict=False):
                axes.plot(line.x, line.y, style, marker="o", color=f"C{number}", label=line.label)
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
        paths.append(output_dir / f"{chart.name}.png")
        figure.savefig(paths[-1], dpi=150)
        pyplot.close(figure)
    return paths


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--output-dir", type=Path, default=Path("charts"))
    args = parser.parse_args(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for path in draw([json.loads(file.read_text()) for file in args.files], args.output_dir):
        print(path)


if __name__ == "__main__":
    main()
