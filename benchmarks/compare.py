"""Measures our servers and their peers on this machine, in turn, and prints how they compare.

    python -m benchmarks.compare servers.toml --rounds 3 --json results.json

Every server is started once and kept; all but the one that is measured are stopped (SIGSTOP), so
that they take memory but no core. Each round runs each load on each server (A B C A B C), with
prompts that no earlier round had, and the tables show medians over the rounds. What the file of
servers says is told in benchmarks/README.md.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.comparison_tables import Measurement, figures_table, pressure_table, ratio_table
from benchmarks.servers import Server, ServerError, ServerSpec, read_specs
from benchmarks.serving_load import Load, summarize

LOADS = {
    "stream": Load(num_requests=2, concurrency=1, input_len=32, output_len=128),
    "prefill": Load(num_requests=2, concurrency=1, input_len=1024, output_len=1),
    "batch16": Load(num_requests=16, concurrency=16, input_len=128, output_len=64),
    "batch64": Load(num_requests=64, concurrency=64, input_len=128, output_len=64),
    # The same requests in a KV cache that holds them all, and in one of 2,560 tokens.
    "roomy": Load(num_requests=16, concurrency=16, input_len=128, output_len=256),
    "pressure": Load(num_requests=16, concurrency=16, input_len=128, output_len=256),
}
CHOICES = ("start", "stream", "prefill", "batch16", "batch64", "pressure")
DEFAULT_LOADS = CHOICES[:-1]
LOAD_TIMEOUT_S = 300.0
# A server that takes longer to start is started once, not in every round.
LONGEST_REPEATED_START_S = 15.0

# Loads that aren't measured have prompts too, and count their seeds from here.
FIRST_UNMEASURED_SEED = 10**6
WARM_UP = Load(num_requests=16, concurrency=16, input_len=128, output_len=8)
FIRST_TOKEN = Load(num_requests=1, concurrency=1, input_len=32, output_len=1)
WAKE_UP = Load(num_requests=1, concurrency=1, input_len=32, output_len=8)


class Comparison:
    """Runs the loads on the servers, and collects what came of them in `measurements`.

    Args:
        loads: names, of CHOICES.
        folder: for the servers' logs.
        seed: of all prompts.
    """

    def __init__(
        self, specs: list[ServerSpec], loads: list[str], folder: Path, seed: int = 0
    ) -> None:
        self.measurements: list[Measurement] = []
        self._loads = loads
        self._seed = seed
        self._num_unmeasured = 0
        self._servers = [Server(spec, folder / f"{spec.name}.log") for spec in specs]
        self._small_servers = {
            spec.name: Server(spec, folder / f"{spec.name}-small.log", small_pool=True)
            for spec in specs
            if "pressure" in loads and spec.small_pool is not None
        }
        self._texts: dict[str, list[str]] = {}  # of each server's "roomy" run in this round

    async def run(self, num_rounds: int) -> None:
        """All rounds. A server that doesn't start or dies is reported and left out from then on.
        No server outlives the call, nor a SIGTERM or Ctrl-C meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            for round_number in range(num_rounds):
                for load in ["start", *self._loads_of_round()]:
                    for server in list(self._servers):
                        await self._step(round_number, load, server)
        finally:
            everything = [*self._servers, *self._small_servers.values()]
            await asyncio.gather(*(server.stop() for server in everything))

    def _loads_of_round(self) -> list[str]:
        names = [name for name in self._loads if name not in ("start", "pressure")]
        return names + (["roomy", "pressure"] if self._small_servers else [])

    async def _step(self, round_number: int, load: str, server: Server) -> None:
        name = server.spec.name
        base = {"server": name, "load": load, "round": round_number}
        try:
            if load == "start":
                await self._start(base, server)
            elif load not in ("roomy", "pressure"):
                await self._measure(base, server)
            elif name in self._small_servers:
                small = self._small_servers[name]
                await self._measure(base, server if load == "roomy" else small)
        except ServerError as error:
            print(f"compare: left out: {error}", file=sys.stderr)
            self._servers.remove(server)
            await server.stop()

    async def _start(self, base: Measurement, server: Server) -> None:
        """Starts a server if this round needs it, and measures that if it was asked for."""
        if base["round"] > 0:
            first = next(
                m for m in self.measurements if m["server"] == base["server"] and "ready_s" in m
            )
            if "start" not in self._loads or first["ready_s"] > LONGEST_REPEATED_START_S:
                return
            await server.stop()
        start = time.perf_counter()
        ready_s = await server.start()
        async with server.running():
            await server.run(self._unmeasured(FIRST_TOKEN))
            first_token_s = time.perf_counter() - start
            await server.run(self._unmeasured(WARM_UP))
        self._add({**base, "ready_s": ready_s, "first_token_s": first_token_s})
        small = self._small_servers.get(base["server"])
        if small is not None and base["round"] == 0:
            await small.start()
            async with small.running():
                await small.run(self._unmeasured(WAKE_UP))

    async def _measure(self, base: Measurement, server: Server) -> None:
        """Runs one load on one server."""
        name = base["load"]
        # Both runs of a pair have the same prompts.
        index = list(LOADS).index("roomy" if name == "pressure" else name)
        seed = self._seed + len(LOADS) * base["round"] + index
        load = dataclasses.replace(LOADS[name], seed=seed)
        result: Measurement = {}
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S), server.running():
                await server.run(self._unmeasured(WAKE_UP))
                async with server.watching_rss() as sizes:
                    exchanges = await server.run(load)
            result["peak_rss_bytes"] = max(sizes)
            result["report"] = dataclasses.asdict(summarize(exchanges))
            texts = [exchange.text for exchange in exchanges]
            if name == "roomy":
                self._texts[base["server"]] = texts
            if name == "pressure":
                pairs = zip(texts, self._texts[base["server"]], strict=True)
                result["num_equal_texts"] = sum(a == b for a, b in pairs)
                result["num_texts"] = len(texts)
        except (ValueError, TimeoutError, aiohttp.ClientError) as error:
            result = {"error": str(error) or "took too long"}
        self._add({**base, **result})

    def _unmeasured(self, load: Load) -> Load:
        """The load with prompts that no other has."""
        self._num_unmeasured += 1
        seed = self._seed + FIRST_UNMEASURED_SEED + self._num_unmeasured
        return dataclasses.replace(load, seed=seed)

    def _add(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)
        print(summary(measurement), file=sys.stderr, flush=True)


def summary(measurement: Measurement) -> str:
    """One line that tells how a measurement went."""
    line = "{round} {load:<9} {server:<20} ".format(**measurement)
    if "error" in measurement:
        return line + measurement["error"]
    if measurement["load"] == "start":
        return line + "ready after {ready_s:.1f} s, first token {first_token_s:.1f} s".format(
            **measurement
        )
    report = measurement["report"]
    line += (
        f"{report['output_tokens_per_s']:8.1f} tokens/s, TTFT {report['ttft_ms']['p50']:6.0f} ms"
    )
    if report["num_failed"]:
        line += f", {report['num_failed']} failed: {report['first_error']}"
    return line


def tables(measurements: list[Measurement], ours: list[str], peers: list[str]) -> str:
    """All tables, as Markdown."""
    return "\n\n".join(
        table
        for table in (
            *(ratio_table(measurements, name, peers) for name in ours),
            figures_table(measurements, [*ours, *peers]),
            pressure_table(measurements, [*ours, *peers]),
        )
        if table
    )


def machine() -> dict[str, Any]:
    """What the figures depend on, besides the servers."""
    model = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": model,
        "num_cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }


def choose(specs: list[ServerSpec], names: list[str] | None) -> list[ServerSpec]:
    """The servers of these names, or all for None.

    Raises:
        ValueError: there is none of a name.
    """
    if names is None:
        return specs
    if unknown := set(names) - {spec.name for spec in specs}:
        known = ", ".join(spec.name for spec in specs)
        raise ValueError(f"no server is called {', '.join(sorted(unknown))}; there are {known}")
    return [spec for spec in specs if spec.name in names]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("servers", type=Path, metavar="SERVERS.toml")
    parser.add_argument("--ours", nargs="*", metavar="NAME", help="ours to run (default: all)")
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="peers to run (default: all)")
    parser.add_argument(
        "--loads",
        nargs="+",
        choices=CHOICES,
        default=list(DEFAULT_LOADS),
        help=f"(default: {' '.join(DEFAULT_LOADS)})",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of all prompts")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where to write what was measured"
    )
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    try:
        ours, peers = read_specs(args.servers)
        args.ours, args.peers = choose(ours, args.ours), choose(peers, args.peers)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="compare-"))
    print(f"logs of the servers: {folder}", file=sys.stderr)
    comparison = Comparison([*args.ours, *args.peers], args.loads, folder, args.seed)
    try:
        asyncio.run(comparison.run(args.rounds))
    finally:
        names = [[spec.name for spec in specs] for specs in (args.ours, args.peers)]
        if args.json:
            result = {
                "machine": machine(),
                "servers": {s.name: dataclasses.asdict(s) for s in [*args.ours, *args.peers]},
                "measurements": comparison.measurements,
            }
            args.json.write_text(json.dumps(result, indent=1))
        print(tables(comparison.measurements, *names))


if __name__ == "__main__":
    main()
