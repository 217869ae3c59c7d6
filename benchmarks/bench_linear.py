"""What exactness costs: the engine with its own linear layers, and with PyTorch's (oneDNN).

Both run the same requests in one process, in turn (A B A B), layer by layer, and the medians are
compared:

    python -m benchmarks.bench_linear smollm2-135m-instruct

Our layers compute a row the same way whatever is beside it; PyTorch's choose their blocking by
shape, so with them answers depend on the batch. Also reported: the share of the machine's read
bandwidth that a decode step with one sequence reaches, counting the weights alone.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from pyengine.config import EngineConfig
from pyengine.engine import Engine
from pyengine.engine.loading import load
from pyengine.models import llama
from pyengine.models.packed_weights import DenseWeight
from pyengine.sampling_params import SamplingParams


class TorchWeight:
    """models.packed_weights.DenseWeight on PyTorch's product."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self.num_outputs, self.num_inputs = weight.shape

    def multiply(self, x: Tensor, bias: Tensor | None, *, float32_out: bool) -> Tensor:
        y = F.linear(x, self._weight, bias)
        return y.float() if float32_out else y

    def embed(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        return F.embedding(token_ids, self._weight)


def make_engine(
    model: str, weight_class: Callable[[Tensor], Any], dtype: str
) -> tuple[Engine, int]:
    """An engine whose layers multiply with such weights, and the bytes of these."""
    num_bytes = 0

    def pack(weight: Tensor) -> Any:
        nonlocal num_bytes
        num_bytes += weight.nbytes
        return weight_class(weight)

    swaps = {
        "pack_weight": pack,
        "pack_weights": lambda parts: [pack(torch.cat(list(parts)))],
        "FusedDecoder": lambda layerwise: layerwise,
    }
    config = EngineConfig(
        model=model,
        dtype=dtype,
        quantization="none",
        num_kv_blocks=2048,
        enable_prefix_caching=False,
        max_draft_tokens=0,
    )
    with ExitStack() as stack:
        for name, value in swaps.items():
            stack.enter_context(mock.patch.object(llama, name, value))
        return Engine(load(config), config), num_bytes


def run(engine: Engine, num_seqs: int, prompt_len: int, max_tokens: int, seed: int) -> float:
    """Seconds that the steps after the first take if more than one token is asked for, else the
    seconds of the whole prefill."""
    rng = random.Random(seed)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for k in range(num_seqs):
        prompt = [rng.randrange(100, 40_000) for _ in range(prompt_len)]
        engine.add_request(engine.new_request(f"{seed}-{k}", prompt, params))
    start = time.perf_counter()
    if max_tokens > 1:
        # Not timed: the prefill of all.
        while engine.stats().num_waiting or any(
            s.num_output_tokens == 0 for s in engine._scheduler.running
        ):
            engine.step()
        start = time.perf_counter()
    while engine.has_unfinished:
        engine.step()
    return time.perf_counter() - start


def read_bandwidth(values: Tensor) -> float:
    """Bytes a second that all threads read together, the median of some sums of `values`."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        values.sum()
        times.append(time.perf_counter() - start)
    return values.nbytes / statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ours, num_bytes = make_engine(args.model, DenseWeight.pack, args.dtype)
    theirs, _ = make_engine(args.model, TorchWeight, args.dtype)
    values = torch.ones(64 * 2**20, dtype=torch.int64)
    print(f"{args.model}, {args.dtype}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    print(f"{'workload':<24}{'ours':>10}{'oneDNN':>10}   speed of ours / oneDNN")
    for name, num_seqs, prompt_len, max_tokens in (
        ("decode, 1 sequence", 1, 16, 65),
        ("decode, 16 sequences", 16, 16, 33),
        ("decode, 64 sequences", 64, 16, 17),
        ("prefill, 1,024 tokens", 1, 1024, 1),
    ):
        for engine in (ours, theirs):
            run(engine, num_seqs, prompt_len, min(max_tokens, 3), seed=0)
        pairs, shares = [], []
        for seed in range(1, args.rounds + 1):
            seconds = run(ours, num_seqs, prompt_len, max_tokens, seed)
            pairs.append((seconds, run(theirs, num_seqs, prompt_len, max_tokens, seed)))
            rate = num_bytes * (max_tokens - 1) / seconds
            shares.append((rate, rate / read_bandwidth(values)))
        a, b = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(theirs / ours for ours, theirs in pairs)
        num_tokens = num_seqs * (max_tokens - 1) or prompt_len
        print(f"{name:<24}{num_tokens / a:>10.1f}{num_tokens / b:>10.1f}   {ratio:.2f}  (tokens/s)")
        if num_seqs == 1 and max_tokens > 1:
            rate, share = (statistics.median(column) for column in zip(*shares, strict=True))
            print(
                f"{'':<24}a step reads weights at {rate / 1e9:.1f} GB/s, {share:.0%} of what a "
                "plain sum over memory reads at the same time"
            )


if __name__ == "__main__":
    main()
