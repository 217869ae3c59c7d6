"""linear: equal to float64 within rounding, and each row to itself alone, bit for bit."""

import pytest
import torch

from pyengine import ops

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(1, 64, 32), (3, 65, 33), (12, 7, 100), (13, 576, 192), (40, 1, 1), (0, 8, 8)]
# Few rows take several panels of 32 outputs at a time, and what is left one by one.
SHAPES += [(1, 64, 300), (2, 33, 290), (4, 30, 257), (5, 64, 200)]


def operands(num_rows: int, num_inputs: int, num_outputs: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(num_rows + num_inputs + num_outputs)
    x = torch.randn(num_rows, num_inputs, generator=generator).to(dtype)
    weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
    bias = torch.randn(num_outputs, generator=generator).to(dtype)
    return x, weight, bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_equals_the_float64_product(shape, dtype):
    x, weight, bias = operands(*shape, dtype)
    expected = x.double() @ weight.double().T + bias.double()
    actual = ops.linear(x, ops.pack_linear_weight(weight), bias, shape[2], float32_out=True)
    # K products and sums of float32, each off by half an ulp of the sum of magnitudes at most.
    bound = (x.double().abs() @ weight.double().abs().T + bias.double().abs()) * (shape[1] + 1)
    assert actual.dtype is torch.float32
    assert ((actual - expected).abs() <= bound * 2**-24).all()
    rounded = ops.linear(x, ops.pack_linear_weight(weight), bias, shape[2])
    assert torch.equal(rounded, actual.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_in_any_tile_and_on_any_number_of_threads(dtype):
    x, weight, bias = operands(64, 321, 130, dtype)
    packed = ops.pack_linear_weight(weight)
    together = ops.linear(x, packed, bias, 130)
    for first, last in [(0, 1), (5, 17), (1, 64), (63, 64), (20, 45)]:
        assert torch.equal(ops.linear(x[first:last], packed, bias, 130), together[first:last])
    num_threads = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            assert torch.equal(ops.linear(x, packed, bias, 130), together)
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_is_the_same_whatever_outputs_are_beside_it(dtype):
    x, weight, _ = operands(5, 96, 70, dtype)
    whole = ops.linear(x, ops.pack_linear_weight(weight), None, 70)
    part = ops.linear(x, ops.pack_linear_weight(weight[37:51].contiguous()), None, 14)
    assert torch.equal(part, whole[:, 37:51])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_x_may_lie_apart(dtype):
    x, weight, bias = operands(6, 40, 24, dtype)
    wide = torch.full((6, 77), torch.nan, dtype=dtype)
    wide[:, 10:50] = x
    packed = ops.pack_linear_weight(weight)
    assert torch.equal(
        ops.linear(wide[:, 10:50], packed, bias, 24), ops.linear(x, packed, bias, 24)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(dtype):
    x, weight, bias = operands(3, 9, 40, dtype)
    packed = ops.pack_linear_weight(weight)
    torch.library.opcheck(torch.ops.pyengine.pack_linear_weight.default, (weight,))
    for float32_out in (False, True):
        torch.library.opcheck(torch.ops.pyengine.linear.default, (x, packed, bias, 40, float32_out))
    torch.library.opcheck(torch.ops.pyengine.linear.default, (x, packed, None, 40, False))


def test_bad_arguments_are_named():
    x, weight, bias = operands(3, 8, 40, torch.float32)
    packed = ops.pack_linear_weight(weight)
    for arguments, message in [
        ((x[0], packed, bias, 40), "x must have 2 dimensions"),
        ((x.double(), packed, bias, 40), "x must be Float or BFloat16, got Double"),
        ((x.T, packed, bias, 40), "x must have contiguous rows"),
        ((x.bfloat16(), packed, bias, 40), "packed_weight must be BFloat16, got Float"),
        ((x[:, :7].contiguous(), packed, bias, 40), "packed_weight must be for 7 inputs"),
        ((x, packed[:, :, :, :0], bias, 40), r"packed_weight must come from pack_linear_weight"),
        (
            (x, packed.reshape(4, 8, 16, 1), bias, 40),
            r"panels of 32 by 1, got shape \[4, 8, 16, 1\]",
        ),
        ((x, packed, bias, 65), "packed_weight must be for 65 outputs"),
        ((x, packed, bias[:39], 40), "bias must have 40 elements"),
        ((x, packed, bias.bfloat16(), 40), "bias must be Float, got BFloat16"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            ops.linear(*arguments)
    with pytest.raises(RuntimeError, match="weight must be contiguous"):
        ops.pack_linear_weight(weight.T)
