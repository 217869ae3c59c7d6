import pytest
import torch

from pyengine import ops
from tests.ops import reference

DTYPES = [torch.float32, torch.bfloat16]
SIZES = [1, 7, 16, 33, 576, 2048]


def randn(*size, dtype=torch.float32, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_matches_the_reference(dtype, size):
    x, weight = randn(5, size, dtype=dtype), randn(size, dtype=dtype, seed=1)
    got = ops.rms_norm(x, weight, 1e-5)
    want = reference.rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    assert torch.all((got.double() - want).abs() <= reference.rms_norm_tolerance(want, dtype))


def test_a_row_of_zeros_stays_zero():
    assert torch.equal(ops.rms_norm(torch.zeros(2, 9), torch.ones(9), 1e-6), torch.zeros(2, 9))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_the_fused_op_is_an_addition_and_a_norm(dtype, size):
    x, residual = (randn(5, size, dtype=dtype, seed=seed) for seed in (0, 1))
    weight = randn(size, dtype=dtype, seed=2)
    want_residual = residual + x
    want = ops.rms_norm(want_residual, weight, 1e-5)
    ops.fused_add_rms_norm_(x, residual, weight, 1e-5)
    assert torch.equal(residual, want_residual)
    assert torch.equal(x, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_company(dtype, with_num_threads):
    x, weight = randn(600, 577, dtype=dtype), randn(577, dtype=dtype, seed=1)
    with_num_threads(1)
    want = ops.rms_norm(x, weight, 1e-5)
    with_num_threads(2)
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), want)
    assert torch.equal(ops.rms_norm(x[321:322], weight, 1e-5), want[321:322])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.zeros(4)}, r"x must have 2 dimensions, got shape \[4\]"),
        ({"x": torch.zeros(3, 4).double()}, "x must be Float or BFloat16, got Double"),
        ({"x": torch.zeros(4, 3).t()}, "x must be contiguous"),
        ({"weight": torch.zeros(5)}, r"weight must have shape \[4\], got \[5\]"),
        ({"weight": torch.zeros(4).bfloat16()}, "weight must have the dtype of x, Float, got BFlo"),
        ({"weight": torch.zeros(8)[::2]}, "weight must be contiguous"),
        ({"eps": -1.0}, "eps must not be negative, got -1"),
        ({"residual": torch.zeros(2, 4)}, r"residual must have shape \[3, 4\], got \[2, 4\]"),
        ({"residual": torch.zeros(3, 4).bfloat16()}, "residual must have the dtype of x"),
        ({"residual": torch.zeros(4, 3).t()}, "residual must be contiguous"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    good = {
        "x": torch.zeros(3, 4),
        "residual": torch.zeros(3, 4),
        "weight": torch.zeros(4),
        "eps": 1e-5,
    }
    bad = {**good, **arguments}
    with pytest.raises(RuntimeError, match=message):
        ops.fused_add_rms_norm_(**bad)
    if "residual" not in arguments:
        del bad["residual"]
        with pytest.raises(RuntimeError, match=message):
            ops.rms_norm(**bad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_pass_opcheck(dtype):
    x, residual, weight = (torch.randn(*s).to(dtype) for s in [(3, 20), (3, 20), (20,)])
    torch.library.opcheck(torch.ops.pyengine.rms_norm, (x, weight, 1e-5))
    torch.library.opcheck(torch.ops.pyengine.fused_add_rms_norm_, (x, residual, weight, 1e-5))
