"""Attention on tensor cores. Lengths lie around its tiles of 32 or 64 keys, its partitions of 256,
and the 16 and 64 rows that a warp and a block take."""

import itertools

import pytest
import torch

from tests.cuda.backend import emulated
from tests.ops import reference
from tests.ops.attention_batches import Chunk, attend, lay_out, make_sequence

DTYPES = [torch.bfloat16, torch.float16]
# Query heads, key/value heads, head size, block size.
SHAPES = [(3, 1, 64, 16), (4, 2, 80, 32), (8, 1, 96, 16), (2, 1, 128, 16), (2, 2, 256, 32)]


def mixed_batch(**shape):
    """Fresh prompts, decodes, a chunk in the middle, a resumed sequence, an idle one."""
    spans = [(0, 5), (599, 600), (60, 130), (3, 3), (520, 540), (0, 1), (64, 65), (0, 77)]
    return [
        Chunk(make_sequence(end, seed=i, **shape), begin, end)
        for i, (begin, end) in enumerate(spans)
    ]


def assert_matches_reference(backend, args, scale, sliding_window=0, soft_cap=0.0):
    got = backend.paged_attention(*args, scale, sliding_window, soft_cap)
    want = reference.paged_attention(*args, scale, sliding_window, soft_cap)
    bound = reference.paged_attention_tolerance(*args, scale, sliding_window, soft_cap)
    assert got.dtype == args[0].dtype
    assert torch.all((got.double() - want).abs() <= bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "block_size"), SHAPES)
def test_a_mixed_batch_matches_the_reference(
    backend, dtype, heads, kv_heads, head_size, block_size
):
    batch = mixed_batch(heads=heads, kv_heads=kv_heads, head_size=head_size, dtype=dtype)
    assert_matches_reference(backend, lay_out(batch, block_size), head_size**-0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "block_size"), SHAPES)
def test_decodes_match_the_reference(backend, dtype, heads, kv_heads, head_size, block_size):
    shape = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size, "dtype": dtype}
    lengths = [1, 16, 63, 64, 65, 256, 257, 700]
    batch = [Chunk(make_sequence(n, seed=n, **shape), n - 1, n) for n in lengths]
    assert_matches_reference(backend, lay_out(batch, block_size), head_size**-0.5)


@pytest.mark.parametrize("sliding_window", [1, 7, 64, 100, 512])
def test_a_sliding_window_sees_its_own_keys_only(backend, sliding_window):
    batch = mixed_batch(dtype=torch.bfloat16)
    args = lay_out(batch, 16, sliding_window=sliding_window)
    assert_matches_reference(backend, args, 0.125, sliding_window)


@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_a_soft_cap_bounds_the_scores(backend, soft_cap):
    args = lay_out(mixed_batch(dtype=torch.float16), 16)
    assert_matches_reference(backend, args, 0.7, 0, soft_cap)


def test_large_scores_neither_overflow_nor_vanish(backend):
    args = lay_out(mixed_batch(dtype=torch.bfloat16), 16)
    assert_matches_reference(backend, args, 100.0)
    assert_matches_reference(backend, args, -100.0)


def test_many_heads_of_one_key_fill_more_than_a_block(backend):
    shape = {"heads": 72, "kv_heads": 1, "dtype": torch.bfloat16}
    batch = [Chunk(make_sequence(n, seed=n, **shape), n - 1, n) for n in [30, 300]]
    assert_matches_reference(backend, lay_out(batch, 16), 0.125)


def test_query_and_cache_may_be_views(backend):
    args = lay_out(mixed_batch(dtype=torch.bfloat16), 16)
    want = backend.paged_attention(*args, 0.125, 0, 0.0)
    product = torch.randn(args[0].shape[0], 5, 64).bfloat16()
    product[:, :3] = args[0]
    layers = torch.full((args[1].shape[0], 2, 3, *args[1].shape[1:]), float("nan")).bfloat16()
    layers[:, 0, 1], layers[:, 1, 1] = args[1], args[2]
    views = (product[:, :3], layers[:, 0, 1], layers[:, 1, 1], *args[3:])
    assert torch.equal(backend.paged_attention(*views, 0.125, 0, 0.0), want)


def test_a_nan_in_a_key_that_is_seen_comes_out(backend):
    sequence = make_sequence(70, dtype=torch.bfloat16)
    sequence.key[66] = float("nan")
    (out,) = attend([Chunk(sequence, 60, 70)], op=backend.paged_attention)
    assert not out[:6].isnan().any()
    assert out[6:].isnan().all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("sliding_window", [0, 9])
def test_a_token_that_is_not_seen_leaves_no_trace(backend, poison, sliding_window):
    options = {"sliding_window": sliding_window, "op": backend.paged_attention}
    sequence = make_sequence(40, heads=1, dtype=torch.bfloat16)
    (want,) = attend([Chunk(sequence, 0, 40)], **options)
    sequence.key[21:23] = poison
    sequence.value[21:23] = poison
    (got,) = attend([Chunk(sequence, 0, 40)], **options)
    assert torch.equal(got[:21], want[:21])
    if sliding_window:
        assert torch.equal(got[22 + sliding_window :], want[22 + sliding_window :])


@pytest.mark.parametrize(
    ("sliding_window", "soft_cap", "head_size"),
    [(0, 0.0, 64), (75, 0.0, 64), (600, 20.0, 64), (0, 0.0, 256)],
)
class TestExactness:
    """A row's bits are a function of its own query and context. (The order of a block's threads is
    of no interest here.)"""

    def options(self, sliding_window, soft_cap):
        return {
            "sliding_window": sliding_window,
            "soft_cap": soft_cap,
            "op": emulated().paged_attention,
        }

    def sequence(self, num_tokens, head_size, seed=0):
        return make_sequence(num_tokens, head_size=head_size, dtype=torch.bfloat16, seed=seed)

    def test_a_prompt_in_chunks_gives_what_it_gives_at_once(
        self, sliding_window, soft_cap, head_size
    ):
        options = self.options(sliding_window, soft_cap)
        sequence = self.sequence(600, head_size)
        (want,) = attend([Chunk(sequence, 0, 600)], **options)
        cuts = [0, 1, 2, 31, 63, 64, 65, 97, 200, 255, 256, 257, 333, 511, 513, 599, 600]
        for begin, end in itertools.pairwise(cuts):
            (got,) = attend([Chunk(sequence, begin, end)], **options)
            assert torch.equal(got, want[begin:end]), (begin, end)

    def test_alone_or_among_others_is_the_same(self, sliding_window, soft_cap, head_size):
        options = self.options(sliding_window, soft_cap)
        spans = [(0, 90), (700, 701), (40, 41), (500, 520), (0, 1), (1000, 1040)]
        chunks = [
            Chunk(self.sequence(end, head_size, seed=i), begin, end)
            for i, (begin, end) in enumerate(spans)
        ]
        for chunk, together in zip(chunks, attend(chunks, **options), strict=True):
            (alone,) = attend([chunk], **options)
            assert torch.equal(together, alone)

    def test_one_block_gives_what_several_give_that_share_the_context(
        self, sliding_window, soft_cap, head_size
    ):
        options = self.options(sliding_window, soft_cap)
        chunks = [
            Chunk(self.sequence(1100, head_size, seed=1), 1099, 1100),
            Chunk(self.sequence(530, head_size, seed=2), 510, 530),
        ]
        shared = attend(chunks, **options)
        # With so many tiles of rows, there are blocks enough.
        idle = [Chunk(chunks[0].sequence, 0, 0)] * 2048
        alone = attend(chunks + idle, **options)[:2]
        for a, b in zip(shared, alone, strict=True):
            assert torch.equal(a, b)

    def test_the_blocks_of_the_cache_do_not_matter(self, sliding_window, soft_cap, head_size):
        options = self.options(sliding_window, soft_cap)
        chunk = Chunk(self.sequence(600, head_size), 530, 600)
        (want,) = attend([chunk], 16, **options)
        for block_size, seed in [(16, 3), (32, 4)]:
            (got,) = attend([chunk], block_size, seed=seed, **options)
            assert torch.equal(got, want), block_size


def test_an_empty_batch_has_an_empty_result(backend):
    cache = torch.zeros(2, 1, 16, 64).bfloat16()
    none = torch.zeros(0, dtype=torch.int32)
    tables = torch.zeros(0, 3, dtype=torch.int32)
    query = torch.zeros(0, 2, 64).bfloat16()
    start = torch.zeros(1, dtype=torch.int32)
    out = backend.paged_attention(query, cache, cache, tables, start, none, 1.0, 0, 0.0)
    assert out.shape == (0, 2, 64)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("query", "cache", "message"),
    [
        (torch.zeros(1, 1, 64), torch.zeros(2, 1, 16, 64), "query must be Half or BFloat16"),
        (
            torch.zeros(1, 1, 72).half(),
            torch.zeros(2, 1, 16, 72).half(),
            "query must have a head size of 64, 80, 96, 128 or 256, got 72",
        ),
        (
            torch.zeros(1, 1, 64).half(),
            torch.zeros(2, 1, 8, 64).half(),
            "key_cache must have a block size of 16 or 32, got 8",
        ),
        (
            torch.zeros(1, 1, 64).half(),
            torch.zeros(2, 1, 16, 68).char(),
            "key_cache must not be int8 on a GPU: so far, int8 caches are for CPUs",
        ),
    ],
)
def test_what_the_kernel_is_not_compiled_for_is_named(backend, query, cache, message):
    with pytest.raises(RuntimeError, match=message):
        backend.paged_attention(
            query, cache, cache, int32([[0]]), int32([0, 1]), int32([1]), 1.0, 0, 0.0
        )
