import pytest
import torch

from tests.cuda.numbers import DTYPES, assert_close
from tests.ops import reference

# A thread has one vector of a row, or several; of what is beyond 8192 it keeps nothing.
SIZES = [1, 31, 64, 257, 576, 2056, 8192, 9001, 12304]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rows_match_the_reference(backend, dtype, size):
    x, weight = torch.randn(5, size).to(dtype), torch.randn(size).to(dtype)
    want = reference.rms_norm(x, weight, 1e-5)
    got = backend.rms_norm(x, weight, 1e-5)
    assert_close(got, want, dtype, reference.rms_norm_tolerance(want, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [300, 2056, 9008])
def test_the_sum_is_rounded_and_normalized_as_if_it_came_alone(backend, dtype, size):
    x, residual, weight = (torch.randn(n, size).to(dtype) for n in (2, 2, 1))
    weight = weight[0]
    total = (x.float() + residual.float()).to(dtype)
    backend.fused_add_rms_norm_(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(x, backend.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone(backend, dtype):
    x, weight = torch.randn(9, 192).to(dtype), torch.randn(192).to(dtype)
    together = backend.rms_norm(x, weight, 1e-5)
    for row in range(9):
        assert torch.equal(backend.rms_norm(x[row : row + 1], weight, 1e-5)[0], together[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 4104, 9008])
def test_memory_that_begins_anywhere_gives_the_same_bits(backend, dtype, size):
    """Sixteen bytes are loaded at once only where they may be."""
    x, residual, weight = (torch.randn(n, size).to(dtype) for n in (2, 2, 1))
    memory = torch.full((2 * size + 9,), torch.nan).to(dtype)
    shifted = memory[1 : 2 * size + 1].view(2, size).copy_(residual)
    for target in (residual, shifted):
        got = x.clone()
        backend.fused_add_rms_norm_(got, target, weight[0], 1e-5)
        assert torch.equal(got, backend.rms_norm(target.clone(), weight[0], 1e-5))
    assert torch.equal(shifted, residual)
    assert memory.isnan().sum() == 9


def test_no_rows_are_no_work(backend):
    assert backend.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
