import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyengine import ops
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
from tests.ops.sampling_reference import distribution, philox4x32_10, sampling_noise

# --- The noise


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the vectors that come with the authors' library, Random123
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            [0xFFFFFFFF] * 2,
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_reference_generator_gives_the_published_words(counter, key, words):
    assert philox4x32_10(counter, key) == words


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
@pytest.mark.parametrize("output_index", [0, 1, 2**31, 2**32, 2**40 + 5])
def test_the_noise_is_that_of_the_reference_generator(seed, output_index):
    # Over 2^16 equally likely tokens, the token is the noise's upper 16 bits.
    token = sample(torch.zeros(1, 2**16), seeds=seed, output_indices=output_index)
    assert token.item() == int(sampling_noise(seed, output_index) * 2**16)


# --- The distribution


@settings(max_examples=300, deadline=None)
@given(
    row=rows_with_ties(),
    temperature=st.sampled_from([0.25, 0.7, 1.0, 1.5]),
    top_k=st.one_of(st.just(0), st.integers(-1, 20), st.integers(1, 800)),
    top_p=st.one_of(st.just(1.0), st.floats(2**-6, 1 - 2**-10, width=32)),
    min_p=st.one_of(st.just(0.0), st.floats(2**-10, 1, width=32)),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_draws_equal_the_reference_under_all_filters(row, temperature, top_k, top_p, min_p, seed):
    temperature = float(np.float32(temperature))
    want = distribution(row, temperature, top_k, top_p, min_p)
    assume(want.margin > want.error)  # float32 can't decide otherwise than the reference does
    got = draws(row, 32, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seeds=seed)
    assert_draws_match(got, want, seed, want.error)


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("vocab_size", [5000, 49152])
@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_k": 50},
        {"top_k": 4000},
        {"min_p": 0.01},
        {"top_k": 100, "top_p": 0.8, "min_p": 0.02},
        {},
    ],
    ids=str,
)
def test_draws_equal_the_reference_on_a_vocabulary_of_real_size(spread, vocab_size, options):
    row = np.random.default_rng(7).normal(0, spread, vocab_size).astype(np.float32)
    options = {name: float(np.float32(v)) if v < 1 else v for name, v in options.items()}
    want = distribution(
        row, 1.0, options.get("top_k", 0), options.get("top_p", 1.0), options.get("min_p", 0.0)
    )
    # Tokens at the edge of top-p hold less than the error: a few more or less may be kept. That
    # moves the cumulative probabilities by the error and one token's share at most.
    slack = 3 * want.error / options.get("top_p", 1.0) + float(want.probs.min())
    assert_draws_match(draws(row, 64, seeds=3, **options), want, 3, slack)


@pytest.mark.parametrize("vary", ["seeds", "output_indices"])
def test_frequencies_follow_the_softmax(vary):
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5, -0.5, 1.5, -2.0, 0.25, 1.0])
    num_draws = 20000
    tokens = sample(logits.expand(num_draws, -1).contiguous(), **{vary: torch.arange(num_draws)})
    counts = np.bincount(tokens.numpy(), minlength=10)
    # 27.88: the 0.999 quantile of chi-square with 9 degrees of freedom; the draws are fixed.
    assert chi_square(counts, logits.double().softmax(0).numpy()) < 27.88


def test_successive_draws_of_a_sequence_are_independent():
    tokens = np.array(draws(torch.zeros(4), 20001, seeds=11))
    pairs = np.bincount(tokens[:-1] * 4 + tokens[1:], minlength=16)
    assert chi_square(pairs, np.full(16, 1 / 16)) < 37.70  # 0.999 quantile, 15 degrees


# --- Ties and edges, exactly


def test_greedy_takes_the_lowest_id_of_the_likeliest():
    logits = torch.full((1, 500), -1.0)
    logits[0, [77, 300, 499]] = 5.0
    assert sample(logits, temperature=0.0, top_k=3, top_p=0.5).item() == 77


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([NAN, 1.0, NAN], 1),
        ([-INFINITY, -5.0, NAN], 1),
        ([-INFINITY, -INFINITY], 0),
        ([NAN, NAN, NAN], 0),
        ([NAN, -INFINITY], 0),
        ([0.0, INFINITY, INFINITY, NAN], 1),
        ([3.0], 0),
    ],
)
def test_numbers_that_are_none_have_a_defined_outcome(row, token, temperature):
    assert set(draws(row, 8, temperature=temperature, top_p=0.9, top_k=2)) == {token}


def test_zero_and_minus_zero_tie():
    assert sample(torch.tensor([[-0.0, 0.0]]), temperature=0.0).item() == 0
    assert set(draws([-0.0, 0.0, -0.0], 50, top_k=2)) == {0, 1}


@pytest.mark.parametrize("num_tied", [8, 300])
@pytest.mark.parametrize("kept", [1, 2, 3, 7, 8])
def test_top_k_resolves_ties_at_the_boundary_to_the_lowest_ids(num_tied, kept):
    row = np.full(1000, -2.0, dtype=np.float32)
    tied = np.sort(np.random.default_rng(num_tied).permutation(1000)[:num_tied])
    row[tied] = 1.0
    assert set(draws(row, 400, top_k=kept)) == set(tied[:kept])


@pytest.mark.parametrize("num_tied", [8, 256])
@pytest.mark.parametrize("eighths", [1, 3, 4, 8])
def test_top_p_resolves_ties_to_the_fewest_lowest_ids_that_reach_it(num_tied, eighths):
    row = np.full(1000, -INFINITY, dtype=np.float32)
    tied = np.sort(np.random.default_rng(num_tied).permutation(1000)[:num_tied])
    row[tied] = 4.0
    # Equal weights of 1 and a multiple of 1/8: the sums are exact.
    kept = tied[: num_tied * eighths // 8]
    assert set(draws(row, 4000, top_p=eighths / 8)) == set(kept)


@pytest.mark.parametrize(("top_k", "num_kept"), [(0, 4000), (4000, 2000)])
def test_top_p_halves_thousands_of_tied_tokens_exactly(top_k, num_kept):
    row = np.full(20000, -INFINITY, dtype=np.float32)
    tied = np.sort(np.random.default_rng(1).permutation(20000)[:8000])
    row[tied] = 4.0
    got = draws(row, 100, top_k=top_k, top_p=0.5, seeds=9)
    assert got == [tied[int(sampling_noise(9, index) * num_kept)] for index in range(100)]


def test_top_p_is_of_what_top_k_and_min_p_left():
    # Of four equal tokens and many small ones, top_k leaves the four, top_p 0.5 the first two.
    row = np.zeros(1000, dtype=np.float32)
    row[[10, 20, 30, 40]] = 3.0
    assert set(draws(row, 200, top_k=4, top_p=0.5)) == {10, 20}
    assert set(draws(row, 200, min_p=0.5, top_p=0.5)) == {10, 20}


@pytest.mark.parametrize("options", [{"top_p": 1e-9}, {"top_p": 0.0}, {"min_p": 1.0}, {"top_k": 1}])
def test_at_least_the_likeliest_token_remains(options):
    assert set(draws([0.0, 1.0, 2.0, 1.5], 50, **options)) == {2}


def test_min_p_of_one_keeps_all_of_the_likeliest():
    assert set(draws([0.0, 1.0, 0.0, 1.0], 50, min_p=1.0)) == {1, 3}


@pytest.mark.parametrize("temperature", [1e-30, 1e-45])
def test_a_tiny_temperature_approaches_greedy(temperature):
    assert set(draws([1.0, 30.0, 29.99, -3e38], 20, temperature=temperature)) == {1}


def test_huge_logits_do_not_overflow():
    assert set(draws([3e38, -3e38, 3e38], 50)) == {0, 2}


# --- Exactness


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_alone_equals_the_row_in_a_batch(num_threads, with_num_threads):
    logits, options = mixed_rows(40, 20011)
    with_num_threads(num_threads)
    together = sample(logits, **options)
    with_num_threads(1)
    for r in range(len(logits)):
        row_options = {name: value[r] for name, value in options.items()}
        assert sample(logits[r : r + 1], **row_options).item() == together[r].item()


def test_the_order_of_rows_does_not_matter():
    logits, options = mixed_rows(16, 3000)
    order = np.random.default_rng(0).permutation(16)
    shuffled = sample(logits[order], **{name: value[order] for name, value in options.items()})
    assert torch.equal(shuffled, sample(logits, **options)[order])


# --- Arguments


def test_no_rows_give_no_tokens():
    assert sample(torch.zeros(0, 5)).shape == (0,)


@pytest.mark.parametrize(("position", "value", "message"), SAMPLE_REFUSALS)
def test_a_bad_argument_is_named(position, value, message):
    with pytest.raises(RuntimeError, match=message):
        ops.sample(*sample_arguments_with(position, value))


def test_passes_opcheck():
    int64 = torch.arange(3)
    options = (torch.tensor([0.0, 1.0, 0.7]), int64.int(), torch.full((3,), 0.9), torch.zeros(3))
    torch.library.opcheck(torch.ops.pyengine.sample, (torch.randn(3, 300), *options, int64, int64))
