import numpy as np
import pytest
import torch
from hypothesis import given, settings

from pyengine import ops
from tests.ops.sampling_batches import (
    PENALTY_REFUSALS,
    assert_penalties_match,
    penalty_arguments,
    penalty_arguments_with,
    penalty_rows,
)


@settings(max_examples=200, deadline=None)
@given(rows=penalty_rows(12))
def test_every_row_equals_the_reference_bit_for_bit(rows):
    assert_penalties_match(rows, 12)


def test_repetition_counts_a_token_of_prompt_and_output_once():
    logits = torch.tensor([[2.0, -2.0, 0.0, 2.0]])
    ops.apply_penalties_(logits, *penalty_arguments([([0, 0, 1], [0, 1])], [(2.0, 0.0, 0.0)]))
    assert logits.tolist() == [[1.0, -4.0, 0.0, 2.0]]


def test_presence_and_frequency_look_at_the_output_alone():
    logits = torch.zeros(1, 4)
    ops.apply_penalties_(logits, *penalty_arguments([([0, 1], [1, 2, 2])], [(1.0, 0.25, 0.5)]))
    assert logits.tolist() == [[0.0, -0.75, -1.25, 0.0]]


def test_a_row_without_history_or_with_penalties_off_stays_as_it_is():
    logits = torch.randn(2, 4)
    before = logits.clone()
    ops.apply_penalties_(
        logits, *penalty_arguments([([], []), ([0, 1], [2])], [(2.0, 1.0, 1.0), (1.0, 0.0, 0.0)])
    )
    assert torch.equal(logits, before)


def test_no_rows_are_fine():
    ops.apply_penalties_(torch.zeros(0, 4), *penalty_arguments([], []))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_alone_equals_the_row_in_a_batch(num_threads, with_num_threads):
    with_num_threads(num_threads)
    rng = np.random.default_rng(0)
    rows, vocab = 9, 20000
    histories = [
        (rng.integers(0, vocab, 300).tolist(), rng.integers(0, 99, 200).tolist())
        for _ in range(rows)
    ]
    penalties = rng.uniform(0.5, 2, (rows, 3)).tolist()
    logits = torch.randn(rows, vocab)
    together = logits.clone()
    ops.apply_penalties_(together, *penalty_arguments(histories, penalties))
    for r in range(rows):
        alone = logits[r : r + 1].clone()
        ops.apply_penalties_(alone, *penalty_arguments(histories[r : r + 1], penalties[r : r + 1]))
        assert torch.equal(alone[0], together[r])


@pytest.mark.parametrize("token", [-1, 4])
def test_a_token_id_outside_the_vocabulary_is_refused_and_changes_nothing(token):
    logits = torch.ones(1, 4)
    with pytest.raises(RuntimeError, match=f"token_ids\\[2\\] must be in \\[0, 4\\), got {token}"):
        ops.apply_penalties_(logits, *penalty_arguments([([0], [1, token])], [(2.0, 1.0, 1.0)]))
    assert torch.equal(logits, torch.ones(1, 4))


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        *PENALTY_REFUSALS,
        (2, torch.tensor([0, 9], dtype=torch.int32), "token_start_loc must end at 3 at most"),
        (2, torch.tensor([1, 3], dtype=torch.int32), "token_start_loc\\[0\\] must be 0, got 1"),
        (2, torch.tensor([0, -1], dtype=torch.int32), "token_start_loc must not decrease"),
        (3, torch.tensor([4], dtype=torch.int32), "num_prompt_tokens\\[0\\] must be in \\[0, 3\\]"),
        (3, torch.tensor([-1], dtype=torch.int32), "num_prompt_tokens\\[0\\] must be in"),
    ],
)
def test_a_bad_argument_is_named(position, value, message):
    with pytest.raises(RuntimeError, match=message):
        ops.apply_penalties_(*penalty_arguments_with(position, value))


def test_passes_opcheck():
    arguments = penalty_arguments([([0], [1, 2]), ([], [3])], [(2.0, 1.0, 1.0), (1.5, 0.0, 0.5)])
    torch.library.opcheck(torch.ops.pyengine.apply_penalties_, (torch.randn(2, 4), *arguments))
