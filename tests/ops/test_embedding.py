import pytest
import torch

from pyengine import ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_copied(dtype):
    weight = torch.randn(50, 33).to(dtype)
    token_ids = torch.tensor([3, 0, 49, 3])
    assert torch.equal(ops.embedding(token_ids, weight), weight[token_ids])
    assert ops.embedding(torch.tensor([], dtype=torch.int64), weight).shape == (0, 33)


def test_bad_arguments_are_named():
    weight = torch.randn(50, 33)
    for token_ids, table, message in [
        (torch.tensor([1, 50]), weight, r"token_ids\[1\] must be in \[0, 50\), got 50"),
        (torch.tensor([-1]), weight, r"token_ids\[0\] must be in \[0, 50\), got -1"),
        (torch.tensor([1.0]), weight, "token_ids must be Long, got Float"),
        (torch.tensor([[1]]), weight, "token_ids must have 1 dimension"),
        (torch.tensor([1]), weight[0], "weight must have 2 dimensions"),
        (torch.tensor([1]), weight.T, "weight must be contiguous"),
        (torch.tensor([1]), weight.double(), "weight must be Float or BFloat16"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            ops.embedding(token_ids, table)


def test_opcheck():
    torch.library.opcheck(
        torch.ops.pyengine.embedding.default, (torch.tensor([1, 2]), torch.randn(5, 8))
    )
