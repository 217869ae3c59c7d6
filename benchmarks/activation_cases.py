"""The operators that read activations, caches and logits, at the shapes of a model."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.op_case import Case, ModelShape, copies
from pyengine import ops

BLOCK_SIZE = 16


def activation_cases(model: ModelShape, cold_bytes: int) -> Iterator[Case]:
    """See `all_cases`."""
    yield from _attention_cases(model, cold_bytes)
    yield from _row_cases(model)
    yield from _logits_cases(model)


def _attention_cases(model: ModelShape, cold_bytes: int) -> Iterator[Case]:
    for name, num_seqs, query_len, context_len in (
        ("decode", 1, 1, 1024),
        ("decode", 16, 1, 256),
        ("decode", 16, 1, 1024),
        ("decode", 64, 1, 256),
        ("prefill", 1, 512, 512),
        ("prefill", 1, 512, 2048),
    ):
        query = torch.randn(num_seqs * query_len, model.num_heads, model.head_size).bfloat16()
        num_blocks = num_seqs * (context_len // BLOCK_SIZE)
        shape = (num_blocks, model.num_kv_heads, BLOCK_SIZE, model.head_size)
        cache_bytes = 2 * 2 * num_blocks * model.num_kv_heads * BLOCK_SIZE * model.head_size
        caches = [
            (torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16())
            for _ in copies(cache_bytes, cold_bytes)
        ]
        tables = torch.randperm(num_blocks).int().view(num_seqs, -1)
        query_start_loc = torch.arange(num_seqs + 1, dtype=torch.int32) * query_len
        seq_lens = torch.full((num_seqs,), context_len, dtype=torch.int32)
        scale = model.head_size**-0.5
        # The context of each query ends with itself.
        num_scores = num_seqs * sum(range(context_len - query_len + 1, context_len + 1))
        yield Case(
            "paged_attention",
            f"{name} {num_seqs}x{query_len} of {context_len}",
            [
                partial(
                    ops.paged_attention, query, *cache, tables, query_start_loc, seq_lens, scale
                )
                for cache in caches
            ],
            cache_bytes + 2 * query.nbytes,
            4 * num_scores * model.num_heads * model.head_size,
        )


def _row_cases(model: ModelShape) -> Iterator[Case]:
    hidden, inner = model.hidden_size, model.intermediate_size
    num_qkv_heads = model.num_heads + 2 * model.num_kv_heads
    for num_rows in (1, 64, 512):
        x = torch.randn(num_rows, hidden).bfloat16()
        residual, weight = torch.zeros_like(x), torch.ones(hidden).bfloat16()
        shape = f"{num_rows}x{hidden}"
        yield Case("rms_norm", shape, [partial(ops.rms_norm, x, weight, 1e-5)], 2 * x.nbytes)
        yield Case(
            "fused_add_rms_norm_",
            shape,
            [partial(ops.fused_add_rms_norm_, x, residual, weight, 1e-5)],
            4 * x.nbytes,
        )
        gate_up = torch.randn(num_rows, 2 * inner).bfloat16()
        yield Case(
            "silu_and_mul",
            f"{num_rows}x{inner}",
            [partial(ops.silu_and_mul, gate_up)],
            gate_up.nbytes * 3 // 2,
        )
        qkv = torch.randn(num_rows, num_qkv_heads, model.head_size).bfloat16()
        query, key, value = qkv.split([model.num_heads, model.num_kv_heads, model.num_kv_heads], 1)
        positions = torch.arange(num_rows)
        cos_sin = torch.randn(num_rows, model.head_size)
        num_blocks = -(-num_rows // BLOCK_SIZE)
        keys, values = torch.zeros(
            2, num_blocks, model.num_kv_heads, BLOCK_SIZE, model.head_size, dtype=torch.bfloat16
        )
        rotate = partial(
            ops.rope_and_cache, query, key, value, positions, cos_sin, keys, values, positions
        )
        yield Case(
            "rope_and_cache",
            f"{num_rows}x{num_qkv_heads}x{model.head_size}",
            [rotate],
            2 * qkv.nbytes + cos_sin.nbytes,
        )
        table = torch.randn(model.vocab_size, hidden).bfloat16()
        token_ids = torch.randint(model.vocab_size, (num_rows,))
        yield Case("embedding", shape, [partial(ops.embedding, token_ids, table)], 2 * x.nbytes)


def _logits_cases(model: ModelShape) -> Iterator[Case]:
    hidden = torch.randn(512, model.hidden_size).bfloat16()
    starts = torch.arange(0, 513, 32, dtype=torch.int32)
    ones = torch.ones(16, dtype=torch.int32)
    yield Case(
        "gather_logits",
        f"16 of 512x{model.hidden_size}",
        [partial(ops.gather_logits, hidden, starts, ones, 16)],
        2 * 16 * model.hidden_size * 2,
    )
    for num_rows in (1, 64):
        logits = torch.randn(num_rows, model.vocab_size) * 3
        shape = f"{num_rows}x{model.vocab_size}"
        zeros, ones = torch.zeros(num_rows), torch.ones(num_rows)
        ids = torch.randint(model.vocab_size, (num_rows,))
        for name, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0),
            ("at 0.8", 0.8, 0, 1.0),
            ("top-k 50", 0.8, 50, 1.0),
            ("top-p 0.9", 0.8, 0, 0.9),
        ):
            filters = (
                torch.full((num_rows,), temperature),
                torch.full((num_rows,), top_k, dtype=torch.int32),
                torch.full((num_rows,), top_p),
                zeros,
                ids,
                ids,
            )
            yield Case(
                "sample", f"{shape} {name}", [partial(ops.sample, logits, *filters)], logits.nbytes
            )
        yield Case(
            "token_logprobs",
            f"{shape} top 5",
            [partial(ops.token_logprobs, logits, ids, 5)],
            logits.nbytes,
        )
        history = torch.randint(model.vocab_size, (num_rows * 256,))
        starts = torch.arange(num_rows + 1, dtype=torch.int32) * 256
        half = torch.full((num_rows,), 128, dtype=torch.int32)
        yield Case(
            "apply_penalties_",
            f"{shape} of 256 tokens",
            [partial(ops.apply_penalties_, logits, history, starts, half, ones, zeros, zeros)],
            history.nbytes + 2 * 4 * history.numel(),
        )
