import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from pyengine import ops
from tests.ops.sampling_batches import (
    PENALTY_REFUSALS,
    assert_penalties_match,
    penalty_arguments,
    penalty_arguments_with,
    penalty_rows,
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a backend has no state
)
@given(rows=penalty_rows(12))
def test_every_row_equals_the_reference_bit_for_bit(backend, rows):
    assert_penalties_match(rows, 12, backend.apply_penalties_)


def long_histories(rows, vocab_size, length):
    """Histories in which few tokens are frequent and many occur once, and penalties for them."""
    rng = np.random.default_rng(vocab_size)
    histories = [
        (
            rng.integers(0, vocab_size, length).tolist(),
            (rng.zipf(1.3, length) % vocab_size).tolist(),
        )
        for _ in range(rows)
    ]
    return histories, rng.uniform(0.5, 2, (rows, 3)).tolist()


@pytest.mark.parametrize(("vocab_size", "length"), [(1, 300), (700, 1024), (50001, 5000)])
def test_long_histories_give_the_bits_of_the_other_backend(backend, vocab_size, length):
    histories, penalties = long_histories(2, vocab_size, length)
    logits = torch.randn(2, vocab_size)
    want = logits.clone()
    ops.apply_penalties_(want, *penalty_arguments(histories, penalties))
    backend.apply_penalties_(logits, *penalty_arguments(histories, penalties))
    assert torch.equal(logits, want)


def test_repetition_counts_a_token_of_prompt_and_output_once(backend):
    logits = torch.tensor([[2.0, -2.0, 0.0, 2.0]])
    history = ([0, 0, 1], [0, 1])
    backend.apply_penalties_(logits, *penalty_arguments([history], [(2.0, 0.0, 0.0)]))
    assert logits.tolist() == [[1.0, -4.0, 0.0, 2.0]]


def test_a_row_without_history_or_with_penalties_off_stays_as_it_is(backend):
    logits = torch.randn(2, 4)
    before = logits.clone()
    histories, penalties = [([], []), ([0, 1], [2])], [(2.0, 1.0, 1.0), (1.0, 0.0, 0.0)]
    backend.apply_penalties_(logits, *penalty_arguments(histories, penalties))
    assert torch.equal(logits, before)


def test_no_rows_are_fine(backend):
    backend.apply_penalties_(torch.zeros(0, 4), *penalty_arguments([], []))


def test_a_row_alone_equals_the_row_in_a_batch_and_leaves_others_alone(backend):
    histories, penalties = long_histories(5, 3001, 700)
    surrounded = torch.full((7, 3001), float("nan"))
    surrounded[1:6] = torch.randn(5, 3001)
    logits = surrounded[1:6].clone()
    backend.apply_penalties_(surrounded[1:6], *penalty_arguments(histories, penalties))
    assert surrounded[[0, 6]].isnan().all()
    for r in range(5):
        alone = logits[r : r + 1]
        arguments = penalty_arguments(histories[r : r + 1], penalties[r : r + 1])
        backend.apply_penalties_(alone, *arguments)
        assert torch.equal(alone[0], surrounded[1 + r])


@pytest.mark.parametrize("token", [-1, 4, 2**32, -(2**63)])
def test_a_token_outside_the_vocabulary_is_left_out(backend, token):
    logits = torch.ones(3, 4)
    histories = [([], []), ([0], [1, token]), ([], [])]
    backend.apply_penalties_(logits, *penalty_arguments(histories, [(2.0, 0.0, 0.0)] * 3))
    assert logits.tolist() == [[1.0] * 4, [0.5, 0.5, 1.0, 1.0], [1.0] * 4]


@pytest.mark.parametrize(
    "starts", [[0, 99, 99], [-7, 2, 3], [3, 1, 0], [0, 3, 1], [2**31 - 1, -(2**31), 3]]
)
@pytest.mark.parametrize("num_prompt_tokens", [-(2**31), 0, 2**31 - 1])
def test_a_history_out_of_bounds_ends_with_the_tokens(backend, starts, num_prompt_tokens):
    logits = torch.ones(4, 4)
    arguments = list(penalty_arguments([([0], [1, 2]), ([], [])], [(2.0, 0.0, 0.0)] * 2))
    arguments[1] = torch.tensor(starts, dtype=torch.int32)
    arguments[2] = torch.tensor([num_prompt_tokens] * 2, dtype=torch.int32)
    backend.apply_penalties_(logits[1:3], *arguments)
    assert set(logits[1:3].flatten().tolist()) <= {0.5, 1.0}
    assert torch.equal(logits[[0, 3]], torch.ones(2, 4))


@pytest.mark.parametrize(("position", "value", "message"), PENALTY_REFUSALS)
def test_a_bad_argument_is_named(backend, position, value, message):
    with pytest.raises(RuntimeError, match=message):
        backend.apply_penalties_(*penalty_arguments_with(position, value))
