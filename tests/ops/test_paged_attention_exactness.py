"""A row's bits are a function of its own query and context: never of the company it keeps.

Lengths lie around the tiles of 64 keys and the partitions of 256 that the kernel is built on.
"""

import itertools

import pytest
import torch

from tests.ops.attention_batches import Chunk, attend, make_sequence

pytestmark = [
    pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16]),
    pytest.mark.parametrize("int8_cache", [False, True]),
    pytest.mark.parametrize(("sliding_window", "soft_cap"), [(0, 0.0), (75, 0.0), (600, 20.0)]),
]


def whole(sequence, **options):
    (out,) = attend([Chunk(sequence, 0, len(sequence.query))], **options)
    return out


@pytest.mark.parametrize(("heads", "kv_heads", "head_size"), [(3, 1, 64), (2, 2, 33), (8, 1, 16)])
def test_a_prompt_in_chunks_gives_what_it_gives_at_once(
    dtype, int8_cache, sliding_window, soft_cap, heads, kv_heads, head_size
):
    options = {"sliding_window": sliding_window, "soft_cap": soft_cap, "int8_cache": int8_cache}
    shape = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size}
    sequence = make_sequence(1100, dtype=dtype, **shape)
    want = whole(sequence, **options)
    cuts = [0, 1, 2, 31, 63, 64, 65, 97, 200, 255, 256, 257, 333, 511, 513, 1023, 1025, 1099, 1100]
    for begin, end in itertools.pairwise(cuts):
        (got,) = attend([Chunk(sequence, begin, end)], **options)
        assert torch.equal(got, want[begin:end]), (begin, end)


def test_a_decode_gives_what_the_prefill_gave(dtype, int8_cache, sliding_window, soft_cap):
    options = {"sliding_window": sliding_window, "soft_cap": soft_cap, "int8_cache": int8_cache}
    sequence = make_sequence(1100, dtype=dtype)
    want = whole(sequence, **options)
    for position in [0, 1, 62, 63, 64, 74, 75, 128, 255, 256, 257, 512, 600, 1024, 1099]:
        (got,) = attend([Chunk(sequence, position, position + 1)], **options)
        assert torch.equal(got, want[position : position + 1]), position


def test_alone_or_among_others_is_the_same(dtype, int8_cache, sliding_window, soft_cap):
    options = {"sliding_window": sliding_window, "soft_cap": soft_cap, "int8_cache": int8_cache}
    spans = [(0, 90), (700, 701), (40, 41), (500, 520), (0, 1), (1000, 1040)]
    chunks = [
        Chunk(make_sequence(end, dtype=dtype, seed=i), begin, end)
        for i, (begin, end) in enumerate(spans)
    ]
    for chunk, together in zip(chunks, attend(chunks, **options), strict=True):
        (alone,) = attend([chunk], **options)
        assert torch.equal(together, alone)


def test_the_blocks_do_not_matter(dtype, int8_cache, sliding_window, soft_cap):
    options = {"sliding_window": sliding_window, "soft_cap": soft_cap, "int8_cache": int8_cache}
    chunk = Chunk(make_sequence(600, dtype=dtype), 530, 600)
    (want,) = attend([chunk], 16, **options)
    for block_size, seed in [(1, 0), (4, 1), (7, 2), (16, 3), (32, 4), (128, 5), (1000, 6)]:
        (got,) = attend([chunk], block_size, seed=seed, **options)
        assert torch.equal(got, want), block_size


def test_the_number_of_threads_does_not_matter(
    dtype, int8_cache, sliding_window, soft_cap, with_num_threads
):
    options = {"sliding_window": sliding_window, "soft_cap": soft_cap, "int8_cache": int8_cache}
    # One long decode is split into partitions when there is more than one thread.
    chunks = [
        Chunk(make_sequence(2100, dtype=dtype, seed=1), 2099, 2100),
        Chunk(make_sequence(130, dtype=dtype, seed=2), 0, 130),
    ]
    with_num_threads(1)
    want = attend(chunks, **options)
    for num_threads in [2, 3]:
        with_num_threads(num_threads)
        got = attend(chunks, **options)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
