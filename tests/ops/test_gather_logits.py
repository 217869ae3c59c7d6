import pytest
import torch

from pyengine import ops


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_takes_the_last_rows_of_each_sequence_in_order(dtype):
    hidden = torch.arange(7 * 3).view(7, 3).to(dtype)
    got = ops.gather_logits(hidden, int32([0, 1, 4, 4, 7]), int32([1, 0, 0, 2]), 3)
    assert torch.equal(got, hidden[[0, 5, 6]])


def test_takes_all_rows_of_a_sequence_or_none_at_all():
    hidden = torch.randn(5, 4)
    assert torch.equal(ops.gather_logits(hidden, int32([0, 5]), int32([5]), 5), hidden)
    assert ops.gather_logits(hidden, int32([0, 5]), int32([0]), 0).shape == (0, 4)
    assert ops.gather_logits(hidden, int32([0]), int32([]), 0).shape == (0, 4)
    assert ops.gather_logits(torch.empty(5, 0), int32([0, 5]), int32([2]), 2).shape == (2, 0)


def test_rows_of_padding_after_the_last_sequence_are_left_out():
    hidden = torch.randn(8, 4)
    got = ops.gather_logits(hidden, int32([0, 2, 5]), int32([1, 1]), 2)
    assert torch.equal(got, hidden[[1, 4]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": torch.zeros(5)}, "hidden must have 2 dimensions, got shape \\[5\\]"),
        ({"hidden": torch.zeros(5, 2, dtype=torch.int32)}, "hidden must be Float or BFloat16"),
        ({"hidden": torch.zeros(2, 5).t()}, "hidden must be contiguous"),
        ({"query_start_loc": torch.tensor([0, 2, 5])}, "query_start_loc must be Int, got Long"),
        ({"query_start_loc": int32([0, 5])}, "query_start_loc must have 3 elements, got 2"),
        ({"query_start_loc": int32([1, 2, 5])}, "query_start_loc\\[0\\] must be 0, got 1"),
        ({"query_start_loc": int32([0, 5, 2])}, "query_start_loc must not decrease"),
        ({"query_start_loc": int32([0, 2, 6])}, "query_start_loc must end at 5 at most, got 6"),
        ({"num_logits": int32([[1, 1]])}, "num_logits must have 1 dimension"),
        ({"num_logits": int32([3, 0])}, "num_logits\\[0\\] must be in \\[0, 2\\]"),
        ({"num_logits": int32([1, -1])}, "num_logits\\[1\\] must be in \\[0, 3\\].*got -1"),
        ({"num_rows": 3}, "num_rows must be the sum of num_logits, 2, got 3"),
        ({"num_rows": -1}, "num_rows must be at least 0, got -1"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    good = {
        "hidden": torch.zeros(5, 2),
        "query_start_loc": int32([0, 2, 5]),
        "num_logits": int32([1, 1]),
        "num_rows": 2,
    }
    with pytest.raises(RuntimeError, match=message):
        ops.gather_logits(**{**good, **arguments})


def test_passes_opcheck():
    args = (torch.randn(5, 2), int32([0, 2, 5]), int32([1, 2]), 3)
    torch.library.opcheck(torch.ops.pyengine.gather_logits, args)
