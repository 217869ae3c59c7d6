import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine import ops
from tests.ops.sampling_batches import (
    INFINITY,
    LOGPROBS_REFUSALS,
    NAN,
    assert_logprobs_match,
    int64,
    logprobs_arguments_with,
)


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 700),
    levels=st.lists(st.integers(-40, 40), min_size=1, max_size=12),
    num_top=st.integers(0, 20),
    seed=st.integers(0, 2**32),
)
def test_equals_float64_with_many_ties(size, levels, num_top, seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.choice(np.float32(levels) / 4, (3, size)))
    token_ids = torch.from_numpy(rng.integers(0, size, 3))
    assert_logprobs_match(logits, token_ids, min(num_top, size))


@pytest.mark.parametrize("num_top", [0, 1, 20, 1000])
@pytest.mark.parametrize("spread", [0.1, 3.0, 20.0])
def test_equals_float64_on_a_vocabulary_of_real_size(spread, num_top):
    torch.manual_seed(0)
    logits = torch.randn(4, 49152) * spread
    assert_logprobs_match(logits, torch.randint(0, 49152, (4,)), num_top)


def test_the_greedy_token_has_rank_one_and_comes_first():
    logits = torch.randn(5, 1000)
    token_ids = logits.argmax(1)
    logprob, rank, top_ids, top_logprobs = ops.token_logprobs(logits, token_ids, 3)
    assert rank.tolist() == [1] * 5
    assert torch.equal(top_ids[:, 0], token_ids)
    assert torch.equal(top_logprobs[:, 0], logprob)


def test_a_nan_counts_as_minus_infinity():
    logits = torch.tensor([[NAN, 1.0, -INFINITY, 1.0]])
    logprob, rank, top_ids, top_logprobs = ops.token_logprobs(logits, int64([0]), 4)
    assert logprob.item() == -INFINITY
    assert rank.item() == 3
    assert top_ids.tolist() == [[1, 3, 0, 2]]
    half = torch.tensor(0.5).log().item()
    assert top_logprobs[0].tolist() == pytest.approx([half, half, -INFINITY, -INFINITY])


@pytest.mark.parametrize("row", [[-INFINITY] * 2, [NAN, NAN], [0.0, INFINITY]])
def test_a_row_without_a_softmax_has_no_log_probabilities(row):
    logprob, _, top_ids, top_logprobs = ops.token_logprobs(torch.tensor([row]), int64([0]), 2)
    assert logprob.isnan().all()
    assert top_logprobs.isnan().all()
    assert sorted(top_ids[0].tolist()) == [0, 1]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_alone_equals_the_row_in_a_batch(num_threads, with_num_threads):
    with_num_threads(num_threads)
    torch.manual_seed(0)
    logits, token_ids = torch.randn(20, 20011) * 4, torch.randint(0, 20011, (20,))
    together = ops.token_logprobs(logits, token_ids, 5)
    for r in range(20):
        alone = ops.token_logprobs(logits[r : r + 1], token_ids[r : r + 1], 5)
        for one, many in zip(alone, together, strict=True):
            assert torch.equal(one[0], many[r])


def test_no_rows_give_no_rows():
    shapes = [t.shape for t in ops.token_logprobs(torch.zeros(0, 5), int64([]), 2)]
    assert shapes == [(0,), (0,), (0, 2), (0, 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *LOGPROBS_REFUSALS,
        ({"token_ids": int64([4])}, "token_ids\\[0\\] must be in \\[0, 4\\).*got 4"),
        ({"token_ids": int64([-1])}, "token_ids\\[0\\] must be in \\[0, 4\\).*got -1"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        ops.token_logprobs(*logprobs_arguments_with(arguments))


def test_passes_opcheck():
    for num_top in (0, 3):
        torch.library.opcheck(
            torch.ops.pyengine.token_logprobs, (torch.randn(2, 300), int64([1, 2]), num_top)
        )
