"""Sampling by a block of 1024 threads a row. Sizes lie around powers of two, where rows begin at no
multiple of 16 bytes, and above 1024 and 32768, where a draw takes another round."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.ops.sampling_batches import (
    INFINITY,
    NAN,
    SAMPLE_REFUSALS,
    assert_draws_match,
    chi_square,
    draws,
    mixed_rows,
    rows_with_ties,
    sample,
    sample_arguments_with,
)
from tests.ops.sampling_reference import distribution, sampling_noise

# --- The noise and the distribution


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
def test_the_noise_is_that_of_the_reference_generator(backend, seed):
    # Over 2^16 equally likely tokens, the token is the noise's upper 16 bits.
    indices = [0, 1, 2**32, 2**40 + 5]
    logits = torch.zeros(len(indices), 2**16)
    tokens = sample(logits, seeds=seed, output_indices=indices, op=backend.sample)
    assert tokens.tolist() == [int(sampling_noise(seed, index) * 2**16) for index in indices]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a backend has no state
)
@given(
    row=rows_with_ties(),
    temperature=st.sampled_from([0.25, 0.7, 1.0, 1.5]),
    top_k=st.one_of(st.just(0), st.integers(-1, 20), st.integers(1, 800)),
    top_p=st.one_of(st.just(1.0), st.floats(2**-6, 1 - 2**-10, width=32)),
    min_p=st.one_of(st.just(0.0), st.floats(2**-10, 1, width=32)),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_draws_equal_the_reference_under_all_filters(
    backend, row, temperature, top_k, top_p, min_p, seed
):
    options = {"temperature": float(np.float32(temperature)), "top_k": top_k}
    options |= {"top_p": top_p, "min_p": min_p}
    want = distribution(row, **options)
    assume(want.margin > want.error)  # float32 can't decide otherwise than the reference does
    got = draws(row, 4, seeds=seed, op=backend.sample, **options)
    assert_draws_match(got, want, seed, want.error)


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.1},
        {"top_p": 0.999},  # ends among the many unlikely tokens
        {"top_k": 50},
        {"top_k": 4000},  # so does this
        {"min_p": 0.01},
        {"top_k": 100, "top_p": 0.8, "min_p": 0.02},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab_size", [5001, 49155])
def test_draws_equal_the_reference_and_the_other_backend(backend, vocab_size, options):
    row = np.random.default_rng(7).normal(0, 2, vocab_size).astype(np.float32)
    options = {name: float(np.float32(v)) if v < 1 else v for name, v in options.items()}
    filters = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **options}
    want = distribution(row, **filters)
    # What either may shift a cumulative probability by: see tests/ops/test_sample.py.
    slack = 3 * want.error / filters["top_p"] + float(want.probs.min())
    got = draws(row, 8, seeds=3, op=backend.sample, **filters)
    assert_draws_match(got, want, 3, slack)
    noises = [sampling_noise(3, index) for index in range(8)]
    is_decided = [want.draw(noise - slack) == want.draw(noise + slack) for noise in noises]
    assert any(is_decided)
    there = draws(row, 8, seeds=3, **filters)
    assert [a for a, b in zip(got, is_decided, strict=True) if b] == [
        a for a, b in zip(there, is_decided, strict=True) if b
    ]


def test_frequencies_follow_the_softmax(backend):
    logits = torch.tensor([1.0, 0.0, 2.0, -0.5])
    tokens = draws(logits, 400, seeds=5, op=backend.sample)
    # 16.27: the 0.999 quantile of chi-square with 3 degrees of freedom; the draws are fixed.
    counts = np.bincount(tokens, minlength=4)
    assert chi_square(counts, logits.double().softmax(0).numpy()) < 16.27


# --- Sizes


@pytest.mark.parametrize("exponent", [0, 1, 5, 10, 12, 15])
def test_sizes_around_powers_of_two_draw_what_the_other_backend_draws(backend, exponent):
    for vocab_size in {max(1, 2**exponent + d) for d in (-1, 0, 1)}:
        logits, options = mixed_rows(5, vocab_size)
        options["top_k"] = [0, 1, 5, vocab_size - 1, vocab_size + 1]
        # The draws lie well within a token's share, so that rounding doesn't decide any.
        assert torch.equal(sample(logits, op=backend.sample, **options), sample(logits, **options))


@pytest.mark.parametrize("vocab_size", [1, 7, 1000, 4097])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.25}, {"min_p": 0.5}], ids=str)
def test_equal_logits_are_equally_likely_from_the_lowest_id(backend, vocab_size, filters):
    kept = {"top_k": min(3, vocab_size), "top_p": -(-vocab_size // 4)}
    num_kept = next((kept[name] for name in filters if name in kept), vocab_size)
    got = draws([2.5] * vocab_size, 6, seeds=9, op=backend.sample, **filters)
    assert got == [int(sampling_noise(9, index) * num_kept) for index in range(6)]


@pytest.mark.parametrize("top_k", [0, 1, 2, 1023, 1024, 1025, 3000, 4999])
@pytest.mark.parametrize("top_p", [1.0, 0.5, 0.125])
def test_exactly_the_likeliest_tokens_are_kept(backend, top_k, top_p):
    # So hot that all tokens are equally likely, though their logits differ.
    row = np.random.default_rng(top_k).permutation(5000)
    num_kept = int(np.ceil((top_k or 5000) * top_p))
    kept = np.flatnonzero(row >= 5000 - num_kept)
    options = {"temperature": 1e30, "top_k": top_k, "top_p": top_p}
    got = draws(row, 8, seeds=4, op=backend.sample, **options)
    assert got == [kept[int(sampling_noise(4, index) * num_kept)] for index in range(8)]


@pytest.mark.parametrize("top_k", [700, 701, 2**31 - 1])
def test_a_top_k_of_the_vocabulary_and_more_is_off(backend, top_k):
    row = torch.randn(700)
    want = draws(row, 4, op=backend.sample)
    assert draws(row, 4, top_k=top_k, op=backend.sample) == want


def test_a_vocabulary_of_more_than_int32_is_refused(backend):
    with pytest.raises(RuntimeError, match="a vocabulary of 1073741824 at most on a GPU, got 20"):
        sample(torch.zeros(0, 2 * 10**9), op=backend.sample)


# --- Ties and edges, exactly


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1.0])
@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([NAN, 1.0, NAN], 1),
        ([-INFINITY, -5.0, NAN], 1),
        ([-INFINITY, -INFINITY], 0),
        ([NAN, NAN, NAN], 0),
        ([-INFINITY] * 1500, 0),
        ([0.0, INFINITY, INFINITY, NAN], 1),
        ([3.0], 0),
    ],
)
def test_numbers_that_are_none_have_a_defined_outcome(backend, row, token, temperature):
    options = {"temperature": temperature, "top_p": 0.9, "top_k": 2, "op": backend.sample}
    assert set(draws(row, 2, **options)) == {token}


@pytest.mark.parametrize("masked", [NAN, -INFINITY])
@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 1e-9}], ids=str)
def test_a_masked_token_is_never_drawn(backend, masked, filters):
    row = np.full(3000, masked, dtype=np.float32)
    row[[5, 1700, 2999]] = [-2.0, -2.5, -2.2]
    assert set(draws(row, 20, op=backend.sample, **filters)) <= {5, 1700, 2999}


def test_greedy_takes_the_lowest_id_of_the_likeliest(backend):
    logits = torch.full((1, 5000), -1.0)
    logits[0, [77, 300, 4999]] = 5.0
    assert sample(logits, temperature=0.0, top_k=3, top_p=0.5, op=backend.sample).item() == 77


def test_zero_and_minus_zero_tie(backend):
    assert sample(torch.tensor([[-0.0, 0.0]]), temperature=0.0, op=backend.sample).item() == 0
    assert set(draws([-0.0, 0.0, -0.0], 20, top_k=2, op=backend.sample)) == {0, 1}


@pytest.mark.parametrize("kept", [1, 2, 7, 8])
def test_top_k_resolves_ties_at_the_boundary_to_the_lowest_ids(backend, kept):
    row = np.full(2000, -2.0, dtype=np.float32)
    tied = np.sort(np.random.default_rng(8).permutation(2000)[:8])
    row[tied] = 1.0
    assert set(draws(row, 48, top_k=kept, op=backend.sample)) == set(tied[:kept])


@pytest.mark.parametrize(("top_k", "num_kept"), [(0, 4000), (4000, 2000)])
def test_top_p_halves_thousands_of_tied_tokens_exactly(backend, top_k, num_kept):
    row = np.full(20000, -INFINITY, dtype=np.float32)
    tied = np.sort(np.random.default_rng(1).permutation(20000)[:8000])
    row[tied] = 4.0
    got = draws(row, 20, top_k=top_k, top_p=0.5, seeds=9, op=backend.sample)
    assert got == [tied[int(sampling_noise(9, index) * num_kept)] for index in range(20)]


def test_top_p_is_of_what_top_k_and_min_p_left(backend):
    # Of four equal tokens and many small ones, top_k leaves the four, top_p 0.5 the first two.
    row = np.zeros(1000, dtype=np.float32)
    row[[10, 20, 30, 40]] = 3.0
    assert set(draws(row, 20, top_k=4, top_p=0.5, op=backend.sample)) == {10, 20}
    assert set(draws(row, 20, min_p=0.5, top_p=0.5, op=backend.sample)) == {10, 20}


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 1e-9},
        {"top_p": 0.0},
        {"top_p": -1.0},
        {"min_p": 1.0},
        {"min_p": 2.0},
        {"top_k": 1},
    ],
    ids=str,
)
def test_at_least_the_likeliest_token_remains(backend, options):
    assert set(draws([0.0, 1.0, 2.0, 1.5], 8, op=backend.sample, **options)) == {2}


@pytest.mark.parametrize("temperature", [1e-30, 1e-45])
def test_a_tiny_temperature_approaches_greedy(backend, temperature):
    row = [1.0, 30.0, 29.99, -3e38]
    assert set(draws(row, 8, temperature=temperature, op=backend.sample)) == {1}


def test_huge_logits_do_not_overflow(backend):
    assert set(draws([3e38, -3e38, 3e38], 20, op=backend.sample)) == {0, 2}


# --- Exactness


def test_a_row_alone_equals_the_row_in_a_batch_of_any_order(backend):
    logits, options = mixed_rows(12, 3001)
    together = sample(logits, op=backend.sample, **options)
    order = np.random.default_rng(0).permutation(12)
    shuffled = {name: value[order] for name, value in options.items()}
    assert torch.equal(sample(logits[order], op=backend.sample, **shuffled), together[order])
    for r in range(12):
        alone = {name: value[r] for name, value in options.items()}
        assert sample(logits[r : r + 1], op=backend.sample, **alone).item() == together[r].item()


def test_what_lies_around_the_rows_is_of_no_interest(backend):
    logits, options = mixed_rows(3, 1999)
    surrounded = torch.full((5, 1999), NAN)
    surrounded[1:4] = logits
    want = sample(logits, op=backend.sample, **options)
    assert torch.equal(sample(surrounded[1:4], op=backend.sample, **options), want)


# --- Arguments


def test_no_rows_give_no_tokens(backend):
    assert sample(torch.zeros(0, 5), op=backend.sample).shape == (0,)


@pytest.mark.parametrize(("position", "value", "message"), SAMPLE_REFUSALS)
def test_a_bad_argument_is_named(backend, position, value, message):
    with pytest.raises(RuntimeError, match=message):
        backend.sample(*sample_arguments_with(position, value))
