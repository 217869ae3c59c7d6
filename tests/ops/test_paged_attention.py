import pytest
import torch

from pyengine import ops
from tests.ops import reference
from tests.ops.attention_batches import Chunk, attend, lay_out, make_sequence

DTYPES = [torch.float32, torch.bfloat16]


def mixed_batch(**shape):
    """Fresh prompts, decodes, a chunk in the middle, a resumed sequence, an idle one."""
    spans = [(0, 5), (599, 600), (60, 130), (3, 3), (520, 540), (0, 1), (64, 65), (0, 77)]
    return [
        Chunk(make_sequence(end, seed=i, **shape), begin, end)
        for i, (begin, end) in enumerate(spans)
    ]


def assert_matches_reference(args, scale, sliding_window=0, soft_cap=0.0):
    got = ops.paged_attention(*args, scale, sliding_window, soft_cap)
    want = reference.paged_attention(*args, scale, sliding_window, soft_cap)
    bound = reference.paged_attention_tolerance(*args, scale, sliding_window, soft_cap)
    assert got.dtype == args[0].dtype
    assert got.is_contiguous()
    assert torch.all((got.double() - want).abs() <= bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8_cache", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "block_size"),
    [
        (3, 1, 64, 16),
        (4, 4, 16, 1),
        (4, 1, 80, 4),
        (8, 1, 96, 32),
        (2, 1, 128, 16),
        (6, 2, 256, 16),
        (2, 2, 33, 5),
        (14, 2, 1, 3),
    ],
)
def test_a_mixed_batch_matches_the_reference(
    dtype, int8_cache, heads, kv_heads, head_size, block_size
):
    batch = mixed_batch(heads=heads, kv_heads=kv_heads, head_size=head_size, dtype=dtype)
    assert_matches_reference(lay_out(batch, block_size, int8_cache=int8_cache), head_size**-0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8_cache", [False, True])
@pytest.mark.parametrize("sliding_window", [1, 7, 64, 100, 512])
def test_a_sliding_window_sees_its_own_keys_only(dtype, int8_cache, sliding_window):
    args = lay_out(
        mixed_batch(dtype=dtype), 16, sliding_window=sliding_window, int8_cache=int8_cache
    )
    assert_matches_reference(args, 0.125, sliding_window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_a_soft_cap_bounds_the_scores(dtype, soft_cap):
    assert_matches_reference(lay_out(mixed_batch(dtype=dtype), 16), 0.7, 0, soft_cap)


def test_large_scores_neither_overflow_nor_vanish():
    args = lay_out(mixed_batch(), 16)
    assert_matches_reference(args, 100.0)
    assert_matches_reference(args, -100.0)


def test_the_query_may_be_a_view_of_a_wider_product():
    args = lay_out(mixed_batch(), 16)
    product = torch.randn(args[0].shape[0], 5, 64)
    product[:, :3] = args[0]
    want = ops.paged_attention(*args, 0.125)
    assert torch.equal(ops.paged_attention(product[:, :3], *args[1:], 0.125), want)


def test_a_nan_in_a_key_that_is_seen_comes_out():
    sequence = make_sequence(70)
    sequence.key[66] = float("nan")
    (out,) = attend([Chunk(sequence, 60, 70)])
    assert not out[:6].isnan().any()
    assert out[6:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8_cache", [False, True])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_later_token_leaves_no_trace_in_an_earlier_one(dtype, int8_cache, poison):
    sequence = make_sequence(40, heads=1, dtype=dtype)
    (want,) = attend([Chunk(sequence, 0, 40)], int8_cache=int8_cache)
    sequence.key[21:] = poison
    sequence.value[21:] = poison
    (got,) = attend([Chunk(sequence, 0, 40)], int8_cache=int8_cache)
    assert torch.equal(got[:21], want[:21])


def test_weights_follow_scores_that_keep_rising():
    """A row's weights are relative to a score that follows the largest one only now and then."""
    sequence = make_sequence(700, heads=1)
    sequence.query[:] = 1
    sequence.key[:] = torch.linspace(-3, 3, 700)[:, None, None]
    args = lay_out([Chunk(sequence, 0, 700)], 16)
    for scale in [0.01, 0.1, 1.0, -1.0]:
        assert_matches_reference(args, scale)


def test_an_empty_batch_has_an_empty_result():
    cache = torch.zeros(2, 1, 4, 8)
    none = torch.zeros(0, dtype=torch.int32)
    tables = torch.zeros(0, 3, dtype=torch.int32)
    out = ops.paged_attention(
        torch.zeros(0, 2, 8), cache, cache, tables, torch.zeros(1, dtype=torch.int32), none, 1.0
    )
    assert out.shape == (0, 2, 8)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": torch.zeros(3, 16)}, r"query must have 3 dimensions, got shape \[3, 16\]"),
        ({"query": torch.zeros(3, 2, 8, dtype=torch.half)}, "query must be Float or BFloat16"),
        ({"query": torch.zeros(3, 8, 2).transpose(1, 2)}, "query must be contiguous in its last"),
        ({"query": torch.zeros(3, 0, 8)}, "query must have a multiple of key_cache's 2 heads"),
        ({"query": torch.zeros(3, 3, 8)}, "query must have a multiple of key_cache's 2 heads"),
        ({"key_cache": torch.zeros(4, 2, 8)}, "key_cache must have 4 dimensions"),
        ({"key_cache": torch.zeros(4, 2, 4, 8).bfloat16()}, "key_cache must have the dtype of que"),
        ({"key_cache": torch.zeros(4, 2, 4, 6)}, "key_cache must have query's head size 8"),
        ({"key_cache": torch.zeros(4, 2, 4, 12).char()}, "value_cache must be Char, got Float"),
        (
            {
                "key_cache": torch.zeros(4, 2, 4, 8).char(),
                "value_cache": torch.zeros(4, 2, 4, 8).char(),
            },
            "key_cache must have query's head size 8 and a scale's 4 bytes last",
        ),
        ({"key_cache": torch.zeros(4, 2, 0, 8)}, "key_cache must have a block size of at least 1"),
        ({"key_cache": torch.zeros(4, 4, 2, 8).transpose(1, 2)}, "key_cache must be contiguous in"),
        ({"value_cache": torch.zeros(4, 2, 4, 9)}, r"value_cache must have shape \[4, 2, 4, 8\]"),
        ({"value_cache": torch.zeros(4, 2, 4, 8).double()}, "value_cache must have the dtype of"),
        ({"block_tables": torch.zeros(2, 2).long()}, "block_tables must be Int, got Long"),
        ({"block_tables": int32([[0, 1]])}, r"block_tables must have shape \[2, 2\]"),
        ({"block_tables": int32([[0, 1], [2, 4]])}, r"block_tables\[1, 1\] must be in \[0, 4\)"),
        ({"block_tables": int32([[-1, 1], [2, 3]])}, r"block_tables\[0, 0\] .* got -1"),
        ({"query_start_loc": int32([0, 3])}, "query_start_loc must have 3 elements, got 2"),
        ({"query_start_loc": int32([1, 2, 3])}, r"query_start_loc\[0\] must be 0, got 1"),
        ({"query_start_loc": int32([0, 3, 2])}, "query_start_loc must not decrease"),
        ({"query_start_loc": int32([0, 1, 2])}, "query_start_loc must end at the 3 tokens of que"),
        ({"seq_lens": torch.tensor([2, 6])}, "seq_lens must be Int, got Long"),
        ({"seq_lens": int32([2, 1])}, r"seq_lens\[1\] must be at least the 2 tokens .* got 1"),
        ({"seq_lens": int32([2, 9])}, r"seq_lens\[1\] must be at most the 8 tokens .* got 9"),
        ({"scale": float("nan")}, "scale must be finite, got nan"),
        ({"sliding_window": -1}, "sliding_window must not be negative, got -1"),
        ({"soft_cap": -1.0}, "soft_cap must be finite and not negative, got -1"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    good = {
        "query": torch.zeros(3, 2, 8),
        "key_cache": torch.zeros(4, 2, 4, 8),
        "value_cache": torch.zeros(4, 2, 4, 8),
        "block_tables": int32([[0, 1], [2, 3]]),
        "query_start_loc": int32([0, 1, 3]),
        "seq_lens": int32([2, 6]),
        "scale": 1.0,
    }
    ops.paged_attention(**good)
    with pytest.raises(RuntimeError, match=message):
        ops.paged_attention(**{**good, **arguments})


def test_a_head_size_over_256_is_refused():
    cache = torch.zeros(1, 1, 4, 257)
    with pytest.raises(RuntimeError, match="query must have a head size of 1 to 256"):
        ops.paged_attention(
            torch.zeros(1, 1, 257), cache, cache, int32([[0]]), int32([0, 1]), int32([1]), 1.0
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_passes_opcheck(dtype):
    args = lay_out([Chunk(make_sequence(20, dtype=dtype), 10, 20)], 4)
    torch.library.opcheck(torch.ops.pyengine.paged_attention, (*args, 0.125, 0, 0.0))
