"""The product of tensor cores, in sums that depend on K alone. Sizes lie around the steps of 32 and
the chunks of 256 inputs, and around the numbers of rows and outputs that the kernels take."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pyengine import ops
from tests.cuda.backend import emulated

DTYPES = [torch.bfloat16, torch.float16]
# Rows, inputs, outputs.
SHAPES = [(1, 8, 1), (2, 64, 40), (9, 1032, 8), (17, 264, 33), (40, 520, 64), (65, 32, 129)]
SHAPES += [(3, 2120, 9), (130, 296, 70), (513, 40, 7), (0, 8, 8), (4, 0, 3), (5, 16, 0)]


def operands(num_rows, num_inputs, num_outputs, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(num_rows + num_inputs + num_outputs)
    x = torch.randn(num_rows, num_inputs, generator=generator).to(dtype)
    weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
    bias = torch.randn(num_outputs, generator=generator).to(dtype)
    return x, weight, bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_equals_the_float64_product(backend, shape, dtype):
    x, weight, bias = operands(*shape, dtype)
    packed = backend.pack_linear_weight(weight)
    for added in (bias, None):
        got = backend.linear(x, packed, added, shape[2], True)
        terms = 0 if added is None else added.double()
        want = x.double() @ weight.double().T + terms
        magnitudes = x.double().abs() @ weight.double().abs().T + abs(terms)
        # Products are exact. Sums of float32 are off by an ulp of the sum of magnitudes at most:
        # tensor cores cut off what doesn't fit.
        assert got.dtype is torch.float32
        assert ((got - want).abs() <= magnitudes * (shape[1] + 1) * 2**-23).all()
        assert torch.equal(backend.linear(x, packed, added, shape[2], False), got.to(dtype))


class TestExactness:
    """An element's bits are a function of its row, its output and K. (The order of a block's
    threads is of no interest here.)"""

    @pytest.mark.parametrize("num_inputs", [8, 16, 64, 264, 520, 1032, 1536])
    @pytest.mark.parametrize("num_outputs", [1, 40])
    def test_a_row_is_the_same_among_any_number_of_rows(self, num_inputs, num_outputs):
        x, weight, bias = operands(600, num_inputs, num_outputs)
        backend = emulated()
        packed = backend.pack_linear_weight(weight)

        def linear(rows):
            return backend.linear(rows, packed, bias, num_outputs, True)

        together = linear(x[: 600 if num_inputs < 100 else 513])
        assert not together.isnan().any()
        for num_rows in (1, 2, 8, 9, 15, 16, 17, 32, 33, 63, 64, 65, 130):
            assert torch.equal(linear(x[:num_rows]), together[:num_rows]), num_rows
        for first, last in [(3, 4), (60, 70), (77, 93), (65, 200), (128, 129), (500, 513)]:
            assert torch.equal(linear(x[first:last]), together[first:last]), (first, last)

    @pytest.mark.parametrize("num_rows", [5, 30, 60, 70, 513])
    def test_an_output_is_the_same_whatever_outputs_are_beside_it(self, num_rows):
        x, weight, _ = operands(num_rows, 296, 150)
        backend = emulated()
        whole = backend.linear(x, backend.pack_linear_weight(weight), None, 150, False)
        for first, last in [(0, 1), (37, 51), (60, 129)]:
            packed = backend.pack_linear_weight(weight[first:last].contiguous())
            part = backend.linear(x, packed, None, last - first, False)
            assert torch.equal(part, whole[:, first:last]), (first, last)


@pytest.mark.parametrize("num_rows", [3, 12, 20, 50, 70])
def test_a_row_or_an_output_that_is_no_number_leaves_the_others_alone(backend, num_rows):
    x, weight, bias = operands(num_rows, 72, 20)
    want = backend.linear(x, backend.pack_linear_weight(weight), bias, 20, False)
    x[1], weight[7] = torch.nan, torch.inf
    got = backend.linear(x, backend.pack_linear_weight(weight), bias, 20, False)
    rows, outputs = torch.arange(num_rows) != 1, torch.arange(20) != 7
    assert torch.equal(got[rows][:, outputs], want[rows][:, outputs])
    assert got[1].isnan().all()
    assert not got[:, 7].isfinite().any()


@pytest.mark.parametrize("num_rows", [6, 70])
def test_rows_of_x_may_lie_apart(backend, num_rows):
    x, weight, bias = operands(num_rows, 40, 24)
    wide = torch.full((num_rows, 80), torch.nan, dtype=torch.bfloat16)
    wide[:, 16:56] = x
    packed = backend.pack_linear_weight(weight)
    got = backend.linear(wide[:, 16:56], packed, bias, 24, False)
    assert torch.equal(got, backend.linear(x, packed, bias, 24, False))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_weight_is_the_weight_and_gives_its_rows_back(backend, dtype):
    _, weight, _ = operands(0, 40, 50, dtype)
    packed = backend.pack_linear_weight(weight)
    assert packed.shape == (50, 40, 1, 1)
    assert packed.data_ptr() != weight.data_ptr()
    assert torch.equal(packed.view(50, 40), weight)
    token_ids = torch.tensor([49, 0, 25, 0])
    assert torch.equal(backend.packed_embedding(token_ids, packed, 50, 40), weight[token_ids])
    nothing = torch.tensor([], dtype=torch.int64)
    assert backend.packed_embedding(nothing, packed, 50, 40).shape == (0, 40)


def test_an_id_that_names_no_row_gives_zeros(backend):
    _, weight, _ = operands(0, 8, 3)
    packed = backend.pack_linear_weight(weight)
    rows = backend.packed_embedding(torch.tensor([2, 3, -1]), packed, 3, 8)
    assert torch.equal(rows, torch.cat([weight[2:], torch.zeros(2, 8).bfloat16()]))


def test_shapes_are_known_ahead():
    with FakeTensorMode():
        weight = torch.empty(40, 64, dtype=torch.bfloat16, device="cuda")
        packed = ops.pack_linear_weight(weight)
        assert packed.shape == (40, 64, 1, 1)
        x = torch.empty(3, 64, dtype=torch.bfloat16, device="cuda")
        assert ops.linear(x, packed, None, 40).shape == (3, 40)


def test_bad_arguments_are_named(backend):
    x, weight, bias = operands(3, 64, 40)
    packed = backend.pack_linear_weight(weight)
    offset = torch.zeros(3 * 64 + 1).bfloat16()[1:].view(3, 64)
    for arguments, message in [
        ((x.float(), packed.float(), None, 40), "x must be Half or BFloat16 on a GPU, got Float"),
        ((x, packed.half(), bias, 40), "packed_weight must be BFloat16, got Half"),
        ((x, packed, bias.half(), 40), "bias must be BFloat16, got Half"),
        ((x, packed, bias, 41), "packed_weight must be for 41 outputs"),
        ((x[:, :8].contiguous(), packed, bias, 40), "packed_weight must be for 8 inputs"),
        ((x, packed.view(40, 32, 1, 2), bias, 40), "in panels of 1 by 1, got shape"),
        (
            (x[:, :7].contiguous(), packed[:, :7].contiguous(), bias, 40),
            "x must have a multiple of 8 inputs on a GPU, got 7",
        ),
        ((offset, packed, bias, 40), "x must have rows that begin at multiples of 16 bytes"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            backend.linear(*arguments, False)
    for bad, message in [
        (weight.float(), "weight must be Half or BFloat16 on a GPU, got Float"),
        (weight.T, "weight must be contiguous"),
        (weight[:, :7].contiguous(), "weight must have a multiple of 8 inputs on a GPU, got 7"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            backend.pack_linear_weight(bad)
