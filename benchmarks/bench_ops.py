"""How near each operator is to what this machine can do.

    python -m benchmarks.bench_ops [--only linear paged_attention] [--json FILE]

The bounds are measured in the same run: memory by all threads summing an array much larger than
the caches, arithmetic by PyTorch's (oneDNN's) product of large square matrices. An operator can't
be faster than the longer of its bytes at the one and its products at the other; its share is that
time over its own. Operands that stay in a cache can beat the memory's bound.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.activation_cases import activation_cases
from benchmarks.op_case import Case, ModelShape, name
from benchmarks.weight_cases import weight_cases
from pyengine import ops

COLD_BYTES = 2**27  # four times the last cache of a small server, and more than most have
MATRIX_SIZE = 2048
BATCH_S = 0.02  # a time is that of a batch of calls at least so long
NUM_BATCHES = 5
HEADER = f"{'op':<23}{'shape':<34}{'us':>10}{'GB/s':>8}{'GFLOP/s':>9}{'share':>8}  of"


@dataclass(frozen=True)
class Bounds:
    bytes_per_s: float
    flops_per_s: dict[str, float]  # by the dtype of the operands; of int8, whole numbers

    def time_s(self, case: Case) -> tuple[float, str]:
        """The least seconds of a call, and what sets them: "memory" or "arithmetic"."""
        memory_s = case.num_bytes / self.bytes_per_s
        arithmetic_s = case.num_flops / self.flops_per_s[case.arithmetic]
        return max((memory_s, "memory"), (arithmetic_s, "arithmetic"))


@dataclass(frozen=True)
class Result:
    """A case, how long it took and what that means."""

    op: str
    shape: str
    seconds: float  # of one call
    bytes_per_s: float
    flops_per_s: float
    share: float  # of the bound
    bound: str  # "memory" or "arithmetic"

    def row(self) -> str:
        flops = f"{self.flops_per_s / 1e9:,.0f}" if self.flops_per_s else "-"
        return (
            f"{self.op:<23}{self.shape:<34}{self.seconds * 1e6:>10,.1f}"
            f"{self.bytes_per_s / 1e9:>8.1f}{flops:>9}{self.share:>8.0%}  {self.bound}"
        )


def seconds_per_call(calls: Sequence[Callable[[], object]]) -> float:
    """The median over batches of calls, made in turn, after one round of all."""
    for call in calls:
        call()
    turns = itertools.cycle(calls)
    times = []
    for _ in range(NUM_BATCHES):
        num_calls, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < BATCH_S:
            next(turns)()
            num_calls += 1
        times.append(elapsed / num_calls)
    return statistics.median(times)


def all_cases(model: ModelShape, cold_bytes: int) -> Iterator[Case]:
    """Every operator. The cases are made one by one, for their operands take memory.

    Args:
        cold_bytes: how much the copies of weights and caches take together at least.
    """
    yield from weight_cases(model, cold_bytes)
    yield from activation_cases(model, cold_bytes)


def measure_bounds() -> Bounds:
    """What all threads together read, multiply and add in a second."""
    values = torch.ones(2**26, dtype=torch.int64)
    read_s = min(seconds_per_call([values.sum]) for _ in range(3))
    a = torch.randint(-8, 8, (2, MATRIX_SIZE, MATRIX_SIZE))
    times_s = {
        name(dtype): seconds_per_call([partial(product, *a.to(dtype))])
        for dtype, product in (
            (torch.bfloat16, torch.mm),
            (torch.float32, torch.mm),
            (torch.int8, torch._int_mm),
        )
    }
    num_flops = 2 * MATRIX_SIZE**3
    return Bounds(values.nbytes / read_s, {k: num_flops / s for k, s in times_s.items()})


def measure(case: Case, bounds: Bounds) -> Result:
    """Times a case."""
    seconds = seconds_per_call(case.calls)
    bound_s, bound = bounds.time_s(case)
    return Result(
        case.op,
        case.shape,
        seconds,
        case.num_bytes / seconds,
        case.num_flops / seconds,
        bound_s / seconds,
        bound,
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", metavar="OP", help="names of operators")
    parser.add_argument("--num-threads", type=int, help="(default: one per core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    args = parser.parse_args(argv)
    if args.num_threads:
        torch.set_num_threads(args.num_threads)
    bounds = measure_bounds()
    arithmetic = ", ".join(f"{k} {v / 1e9:,.0f}" for k, v in bounds.flops_per_s.items())
    print(f"{ops.isa_name()} kernels, {torch.get_num_threads()} threads")
    print(f"bounds: {bounds.bytes_per_s / 1e9:.1f} GB/s; GFLOP/s: {arithmetic}\n{HEADER}")
    results = []
    for case in all_cases(ModelShape(), COLD_BYTES):
        if not args.only or case.op in args.only:
            results.append(measure(case, bounds))
            print(results[-1].row(), flush=True)
    if args.json:
        document = {"bounds": vars(bounds), "results": [vars(result) for result in results]}
        args.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
