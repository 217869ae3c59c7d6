"""What share of a GPU the engine uses, on a model of random weights in a named shape.

    python -m benchmarks.gpu --shape qwen3-0.6b
    python -m benchmarks.gpu --shape llama-8b --no-exact

Prints, in medians of some repetitions:

- decode attention: the rate at which keys and values are read, as a share of the rate of a copy
- prefill attention: its time over that of PyTorch's own on contiguous tensors
- a decode step with 1, 8, 64 and 256 sequences: its time over that of reading the weights once, at
  the rate of a copy
- a prefill of 8,192 tokens, in TFLOP/s
- the output tokens per second of 256 requests that come at once, with prompts and outputs of 100 to
  1,024 tokens drawn from a fixed seed
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.random_model import SHAPES, num_weight_bytes, random_model
from pyengine import ops
from pyengine.config import EngineConfig
from pyengine.engine import Engine
from pyengine.engine.devices import Device, find_device
from pyengine.engine.devices.device import CacheShape
from pyengine.engine.loading import LoadedModel
from pyengine.models.layers import AttentionInputs, KVCache
from pyengine.sampling_params import SamplingParams

BLOCK_SIZE = 16
DECODE_BATCHES = (1, 8, 64, 256)
DECODE_CONTEXT = 512
PREFILL_TOKENS = 8192
NUM_REQUESTS = 256
REQUEST_TOKENS = (100, 1024)


class Bench:
    """The measurements, each a method that returns named numbers.

    Args:
        loaded: the model.
        num_repeats: of each measurement.
        scale: divides the sizes of the workloads, for a try on a machine without a GPU.
    """

    def __init__(self, loaded: LoadedModel, num_repeats: int, scale: int = 1) -> None:
        self._loaded = loaded
        self._device: Device = loaded.device
        self._num_repeats = num_repeats
        self._scale = scale
        self._copy_rate = self._measure_copy_rate()

    def run(self) -> dict[str, float]:
        return {
            "copy GB/s": self._copy_rate / 1e9,
            **self.decode_attention(),
            **self.prefill_attention(),
            **self.decode_steps(),
            **self.prefill(),
            **self.throughput(),
        }

    def decode_attention(self) -> dict[str, float]:
        results = {}
        for num_seqs, context in ((64, 8192), (1, 32768)):
            num_seqs, context = max(1, num_seqs // self._scale), context // self._scale
            inputs, query, keys, values = self._attention_case([1] * num_seqs, context)
            seconds = self._median_seconds(lambda: self._attend(query, keys, values, inputs))  # noqa: B023
            num_bytes = 2 * num_seqs * context * keys.shape[1] * keys.shape[3] * 2
            name = f"decode attention, {num_seqs} x {context}: share of copy"
            results[name] = num_bytes / seconds / self._copy_rate
        return results

    def prefill_attention(self) -> dict[str, float]:
        """Over the time of scaled_dot_product_attention on contiguous tensors."""
        num_tokens = 8192 // self._scale
        inputs, query, keys, values = self._attention_case([num_tokens], num_tokens)
        ours = self._median_seconds(lambda: self._attend(query, keys, values, inputs))
        heads, kv_heads = query.shape[1], keys.shape[1]
        q = query.transpose(0, 1)[None].contiguous()
        k, v = (torch.randn_like(q[:, :kv_heads]) for _ in range(2))
        theirs = self._median_seconds(
            lambda: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=heads != kv_heads
            )
        )
        return {f"prefill attention, {num_tokens}: time / PyTorch's": ours / theirs}

    def decode_steps(self) -> dict[str, float]:
        """Over the time that it takes to read the weights once, as fast as they can be copied."""
        floor = num_weight_bytes(self._loaded.config) / self._copy_rate
        results = {}
        for batch in DECODE_BATCHES:
            batch = max(1, batch // self._scale)
            step = self._decode_step(batch, DECODE_CONTEXT // self._scale)
            seconds = self._median_seconds(step)
            results[f"decode step, {batch}: ms"] = seconds * 1e3
            results[f"decode step, {batch}: time / reading the weights"] = seconds / floor
        return results

    def prefill(self) -> dict[str, float]:
        num_tokens = PREFILL_TOKENS // self._scale
        cache, inputs = self._cache_and_inputs([num_tokens], num_tokens)
        (token_ids,) = self._device.place([torch.zeros(num_tokens, dtype=torch.int64)])
        model, config = self._loaded.model, self._loaded.config

        def forward() -> None:
            model.logits(model.forward(model.embed(token_ids), inputs, cache)[-1:])

        seconds = self._median_seconds(forward)
        num_weights = num_weight_bytes(config, with_head=False) // 2
        scores = config.num_layers * config.num_heads * config.head_size * num_tokens**2
        flops = 2 * num_weights * num_tokens + 2 * scores  # half of the scores are masked
        return {f"prefill, {num_tokens} tokens: TFLOP/s": flops / seconds / 1e12}

    def throughput(self) -> dict[str, float]:
        rng = random.Random(0)
        low, high = (max(1, n // self._scale) for n in REQUEST_TOKENS)
        engine = self._new_engine(2 * high)
        num_requests = max(2, NUM_REQUESTS // self._scale)
        vocab_size = self._loaded.config.vocab_size

        def run_all(number: int) -> tuple[int, float]:
            num_tokens = 0
            for k in range(num_requests):
                prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(low, high))]
                max_tokens = rng.randint(low, high)
                params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
                engine.add_request(engine.new_request(f"{number}-{k}", prompt, params))
                num_tokens += max_tokens
            start = time.perf_counter()
            while engine.has_unfinished:
                engine.step()
            return num_tokens, time.perf_counter() - start

        run_all(0)  # captures what is captured
        rates = [num_tokens / seconds for num_tokens, seconds in map(run_all, (1, 2, 3))]
        return {f"{num_requests} requests: output tokens/s": statistics.median(rates)}

    def _new_engine(self, max_sequence_len: int) -> Engine:
        options = {"device": self._device.torch_device.type, "enable_prefix_caching": False}
        if self._device.torch_device.type == "cpu":
            options["num_kv_blocks"] = 4 * max_sequence_len // BLOCK_SIZE
        return Engine(self._loaded, EngineConfig(model=self._loaded.name, **options))

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        return ops.paged_attention(
            *(query, keys, values, inputs.block_tables, inputs.query_start_loc, inputs.seq_lens),
            query.shape[2] ** -0.5,
        )

    def _attention_case(
        self, query_lens: list[int], context: int
    ) -> tuple[AttentionInputs, Tensor, Tensor, Tensor]:
        """Sequences of this context, of which some tokens are fed, in one layer's cache."""
        cache, inputs = self._cache_and_inputs(query_lens, context, num_layers=1)
        layer = cache.layer(0)
        layer.keys.normal_()
        layer.values.normal_()
        c = self._loaded.config
        query = torch.randn(sum(query_lens), c.num_heads, c.head_size, device=layer.keys.device)
        return inputs, query.to(layer.keys.dtype), layer.keys, layer.values

    def _cache_and_inputs(
        self, query_lens: list[int], context: int, num_layers: int | None = None
    ) -> tuple[KVCache, AttentionInputs]:
        c, num_seqs = self._loaded.config, len(query_lens)
        blocks_per_seq = -(-context // BLOCK_SIZE)
        cache = self._device.new_kv_cache(
            CacheShape(
                *(num_layers or c.num_layers, num_seqs * blocks_per_seq, c.num_kv_heads),
                *(BLOCK_SIZE, c.head_size, self._loaded.kv_cache_dtype),
            )
        )
        tables = torch.randperm(num_seqs * blocks_per_seq).view(num_seqs, blocks_per_seq)
        positions = torch.cat([torch.arange(context - n, context) for n in query_lens])
        owner = torch.repeat_interleave(torch.arange(num_seqs), torch.tensor(query_lens))
        blocks = tables[owner, positions // BLOCK_SIZE]
        starts = torch.tensor([0, *query_lens]).cumsum(0)
        return cache, AttentionInputs(
            *self._device.place(
                [
                    positions,
                    blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
                    tables.int(),
                    starts.int(),
                    torch.full((num_seqs,), context, dtype=torch.int32),
                ]
            )
        )

    def _decode_step(self, num_seqs: int, context: int) -> Callable[[], object]:
        """From token ids to the logits, as an engine runs it."""
        cache, inputs = self._cache_and_inputs([1] * num_seqs, context)
        (token_ids,) = self._device.place([torch.zeros(num_seqs, dtype=torch.int64)])
        model = self._loaded.model
        graphs = self._device.new_graphs(model, cache, num_seqs, inputs.block_tables.shape[1])
        if graphs is not None:
            return lambda: model.logits(graphs.run(token_ids, inputs))
        return lambda: model.logits(model.forward(model.embed(token_ids), inputs, cache))

    def _measure_copy_rate(self) -> float:
        """Bytes a second that a large copy reads and writes together."""
        source = torch.empty((1 << 30) // self._scale**2, dtype=torch.uint8)
        source = source.to(self._device.torch_device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self._median_seconds(lambda: target.copy_(source))

    @torch.inference_mode()
    def _median_seconds(self, work: Callable[[], object]) -> float:
        """Of one call, when calls follow each other."""
        num_calls = 1 if self._device.torch_device.type == "cpu" else 10
        for _ in range(3):
            work()
        times = []
        for _ in range(self._num_repeats):
            self._synchronize()
            start = time.perf_counter()
            for _ in range(num_calls):
                work()
            self._synchronize()
            times.append((time.perf_counter() - start) / num_calls)
        return statistics.median(times)

    def _synchronize(self) -> None:
        if self._device.torch_device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--exact", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")
    args = parser.parse_args()
    try:
        device = find_device("cuda")
    except ValueError as error:
        sys.exit(f"benchmarks.gpu: {error}")
    loaded = random_model(args.shape, device, exact=args.exact)
    results = Bench(loaded, args.repeats).run()
    if args.json:
        print(json.dumps({"shape": args.shape, "exact": args.exact, **results}))
        return
    print(f"{args.shape}, {loaded.dtype}, exact: {args.exact}, {device.describe()}")
    for name, value in results.items():
        print(f"{name:<60}{value:>12.3f}")


if __name__ == "__main__":
    main()
