import pytest
import torch

from pyengine import ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_copied(dtype):
    weight = torch.randn(50, 33).to(dtype)
    token_ids = torch.tensor([3, 0, 49, 3])
    assert torch.equal(ops.embedding(token_ids, weight), weight[token_ids])
    assert ops.embedding(torch.tensor([], dtype=torch.int64), weight).shape == (0, 33)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(50, 33), (64, 8), (1, 1)])
def test_rows_of_a_packed_weight_are_those_that_were_packed(shape, dtype):
    weight = torch.randn(*shape).to(dtype)
    packed = ops.pack_linear_weight(weight)
    token_ids = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    assert torch.equal(ops.packed_embedding(token_ids, packed, *shape), weight[token_ids])
    nothing = torch.tensor([], dtype=torch.int64)
    assert ops.packed_embedding(nothing, packed, *shape).shape == (0, shape[1])


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
    packed = ops.pack_linear_weight(weight)
    for arguments, message in [
        ((torch.tensor([50]), packed, 50, 33), r"token_ids\[0\] must be in \[0, 50\), got 50"),
        ((torch.tensor([1.0]), packed, 50, 33), "token_ids must be Long, got Float"),
        ((torch.tensor([1]), packed.double(), 50, 33), "packed_weight must be Float or BFloat16"),
        ((torch.tensor([1]), packed, 65, 33), "packed_weight must be for 65 outputs"),
        ((torch.tensor([1]), packed, 50, 32), "packed_weight must be for 32 inputs"),
        ((torch.tensor([1]), weight, 50, 33), "packed_weight must have 4 dimensions"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            ops.packed_embedding(*arguments)


def test_opcheck():
    torch.library.opcheck(
        torch.ops.pyengine.embedding.default, (torch.tensor([1, 2]), torch.randn(5, 8))
    )
    packed = ops.pack_linear_weight(torch.randn(5, 8))
    torch.library.opcheck(
        torch.ops.pyengine.packed_embedding.default, (torch.tensor([1, 2]), packed, 5, 8)
    )
