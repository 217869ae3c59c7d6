"""The tables of `compare`: what is read from its measurements, medians and ratios, as Markdown."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# One run of one load on one server: {"server", "load", "round", "report" (a Report's fields)}, and
# what only some loads have, or {..., "error"} instead of a report.
Measurement = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    name: str  # with its unit
    load: str
    read: Callable[[Measurement], float | None]
    digits: int = 0


def _report(*path: str) -> Callable[[Measurement], float | None]:
    def read(measurement: Measurement) -> float | None:
        value: Any = measurement["report"]
        for key in path:
            value = value[key]
        return value

    return read


METRICS = (
    Metric("one stream, tokens/s", "stream", _report("decode_tokens_per_s"), 1),
    Metric("1,024 tokens alone, first token, ms", "prefill", _report("ttft_ms", "p50")),
    Metric("16 at once, tokens/s", "batch16", _report("output_tokens_per_s")),
    Metric("16 at once, first token p50, ms", "batch16", _report("ttft_ms", "p50")),
    Metric("16 at once, between tokens p50, ms", "batch16", _report("itl_ms", "p50"), 1),
    Metric("16 at once, between tokens p99, ms", "batch16", _report("itl_ms", "p99"), 1),
    Metric("64 at once, tokens/s", "batch64", _report("output_tokens_per_s")),
    Metric("64 at once, first token p50, ms", "batch64", _report("ttft_ms", "p50")),
    Metric("64 at once, between tokens p50, ms", "batch64", _report("itl_ms", "p50"), 1),
    Metric("64 at once, between tokens p99, ms", "batch64", _report("itl_ms", "p99"), 1),
    Metric("64 at once, resident memory, MB", "batch64", lambda m: m["peak_rss_bytes"] / 1e6),
    Metric("start to ready, s", "start", lambda m: m["ready_s"], 1),
    Metric("start to first token, s", "start", lambda m: m["first_token_s"], 1),
)


def values(measurements: Sequence[Measurement], server: str, metric: Metric) -> dict[int, float]:
    """What each round has of a metric; rounds that failed are left out."""
    result = {}
    for m in measurements:
        if (m["server"], m["load"]) == (server, metric.load) and "error" not in m:
            value = metric.read(m)
            if value is not None:
                result[m["round"]] = value
    return result


def ratio(ours: dict[int, float], theirs: dict[int, float]) -> float | None:
    """The median over rounds of ours / theirs; of the medians if they have no round in common."""
    ratios = [ours[i] / theirs[i] for i in ours.keys() & theirs.keys()]
    if ratios:
        return statistics.median(ratios)
    if ours and theirs:
        return statistics.median(ours.values()) / statistics.median(theirs.values())
    return None


def ratio_table(measurements: Sequence[Measurement], ours: str, peers: Sequence[str]) -> str:
    """Our medians, and how many times each peer's they are."""
    rows = []
    for metric in METRICS:
        own = values(measurements, ours, metric)
        if own:
            ratios = [ratio(own, values(measurements, peer, metric)) for peer in peers]
            cells = ["-" if r is None else f"{r:.2f}" for r in ratios]
            rows.append([metric.name, _number(statistics.median(own.values()), metric), *cells])
    return _markdown([f"{ours}, ratio to:", "ours", *peers], rows)


def figures_table(measurements: Sequence[Measurement], servers: Sequence[str]) -> str:
    """The medians of every server."""
    rows = []
    for metric in METRICS:
        columns = [values(measurements, server, metric) for server in servers]
        if any(columns):
            cells = [_number(statistics.median(c.values()), metric) if c else "-" for c in columns]
            rows.append([metric.name, *cells])
    return _markdown(["", *servers], rows)


def pressure_table(measurements: Sequence[Measurement], servers: Sequence[str]) -> str:
    """How each server does when its KV cache holds a part of what runs, against when it holds all.
    Servers without the load are left out."""
    rows = []
    for server in servers:
        runs = [m for m in measurements if (m["server"], m["load"]) == (server, "pressure")]
        if not runs:
            continue
        if any("error" in m for m in runs):
            rows.append([server, "-", "-", "-", "-", "all failed"])
            continue
        speed = Metric("", "roomy", _report("output_tokens_per_s"))
        roomy = values(measurements, server, speed)
        tight = {m["round"]: m["report"]["output_tokens_per_s"] for m in runs}
        share = ratio(tight, roomy)
        rows.append(
            [
                server,
                _number(statistics.median(roomy.values()), speed) if roomy else "-",
                _number(statistics.median(tight.values()), speed),
                "-" if share is None else f"{share:.2f}",
                f"{sum(m['num_equal_texts'] for m in runs)} of {sum(m['num_texts'] for m in runs)}",
                f"{max(m['report']['itl_ms']['max'] for m in runs) / 1000:.1f} s",
            ]
        )
    header = ["", "roomy, tokens/s", "tight, tokens/s", "ratio", "texts equal", "longest gap"]
    return _markdown(header, rows) if rows else ""


def _number(value: float, metric: Metric) -> str:
    return f"{value:,.{metric.digits}f}"


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
