import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops.sampling_batches import (
    INFINITY,
    LOGPROBS_REFUSALS,
    NAN,
    assert_logprobs_match,
    int64,
    logprobs_arguments_with,
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a backend has no state
)
@given(
    size=st.integers(1, 700),
    levels=st.lists(st.integers(-40, 40), min_size=1, max_size=12),
    num_top=st.integers(0, 20),
    seed=st.integers(0, 2**32),
)
def test_equals_float64_with_many_ties(backend, size, levels, num_top, seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.choice(np.float32(levels) / 4, (3, size)))
    token_ids = torch.from_numpy(rng.integers(0, size, 3))
    assert_logprobs_match(logits, token_ids, min(num_top, size), backend.token_logprobs)


@pytest.mark.parametrize("spread", [0.1, 3.0, 20.0])
def test_equals_float64_on_a_vocabulary_of_real_size(backend, spread):
    torch.manual_seed(0)
    logits = torch.randn(3, 49155) * spread
    assert_logprobs_match(logits, torch.randint(0, 49155, (3,)), 20, backend.token_logprobs)


@pytest.mark.parametrize("size", [1, 2, 31, 33, 1023, 1024, 1025, 2049])
def test_all_tokens_can_be_put_in_order(backend, size):
    torch.manual_seed(size)
    logits = torch.randn(2, size)
    logits[1] = logits[1].round()
    assert_logprobs_match(logits, torch.randint(0, size, (2,)), size, backend.token_logprobs)


@pytest.mark.parametrize("num_top", [1024, 1025, 2500])
def test_more_top_tokens_than_threads_are_put_in_order(backend, num_top):
    # Ties of 500 tokens lie across the end of each thousand.
    logits = (torch.arange(5001) % 10).float().repeat(2, 1)
    assert_logprobs_match(logits, int64([3, 4999]), num_top, backend.token_logprobs)


def test_a_nan_counts_as_minus_infinity(backend):
    logits = torch.tensor([[NAN, 1.0, -INFINITY, 1.0]])
    logprob, rank, top_ids, top_logprobs = backend.token_logprobs(logits, int64([0]), 4)
    assert logprob.item() == -INFINITY
    assert rank.item() == 3
    assert top_ids.tolist() == [[1, 3, 0, 2]]
    half = torch.tensor(0.5).log().item()
    assert top_logprobs[0].tolist() == pytest.approx([half, half, -INFINITY, -INFINITY])


def test_masked_tokens_come_last_by_id(backend):
    logits = torch.full((1, 3000), -INFINITY)
    logits[0, [2900, 7]] = torch.tensor([2.0, 1.0])
    _, _, top_ids, _ = backend.token_logprobs(logits, int64([7]), 6)
    assert top_ids.tolist() == [[2900, 7, 0, 1, 2, 3]]


@pytest.mark.parametrize("row", [[-INFINITY] * 2, [NAN, NAN], [0.0, INFINITY]])
def test_a_row_without_a_softmax_has_no_log_probabilities(backend, row):
    logprob, _, top_ids, top_logprobs = backend.token_logprobs(torch.tensor([row]), int64([0]), 2)
    assert logprob.isnan().all()
    assert top_logprobs.isnan().all()
    assert sorted(top_ids[0].tolist()) == [0, 1]


@pytest.mark.parametrize("token", [-1, 4, 2**40, -(2**63)])
def test_a_token_outside_the_vocabulary_has_no_probability(backend, token):
    logprob, rank, top_ids, _ = backend.token_logprobs(torch.randn(1, 4), int64([token]), 4)
    assert (logprob.item(), rank.item()) == (-INFINITY, 5)
    assert sorted(top_ids[0].tolist()) == [0, 1, 2, 3]


def test_a_row_alone_equals_the_row_in_a_batch(backend):
    torch.manual_seed(0)
    surrounded = torch.full((12, 3001), NAN)
    logits, token_ids = surrounded[1:11], torch.randint(0, 3001, (10,))
    logits.copy_(torch.randn(10, 3001) * 4)
    together = backend.token_logprobs(logits, token_ids, 5)
    for r in range(10):
        alone = backend.token_logprobs(logits[r : r + 1], token_ids[r : r + 1], 5)
        for one, many in zip(alone, together, strict=True):
            assert torch.equal(one[0], many[r])


def test_no_rows_give_no_rows(backend):
    shapes = [t.shape for t in backend.token_logprobs(torch.zeros(0, 5), int64([]), 2)]
    assert shapes == [(0,), (0,), (0, 2), (0, 2)]


@pytest.mark.parametrize(("arguments", "message"), LOGPROBS_REFUSALS)
def test_a_bad_argument_is_named(backend, arguments, message):
    with pytest.raises(RuntimeError, match=message):
        backend.token_logprobs(*logprobs_arguments_with(arguments))
