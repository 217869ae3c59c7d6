"""quantized_linear: exact in integers, near to float64, each row to itself alone bit for bit."""

import numpy as np
import pytest
import torch

from pyengine import ops
from pyengine.weights.ggml_types import SUPPORTED_TYPES, GGMLType

TYPES = [type_ for type_ in SUPPORTED_TYPES if type_.is_quantized]
DTYPES = [torch.float32, torch.bfloat16]
# Where a block has its float16 scale and, after it, its minimum.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
# One row, few that take two panels at a time, tiles with and without a rest, many tiles.
NUM_ROWS = [1, 2, 3, 6, 7, 12, 13, 40, 200]
each_type = pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random_blocks(type_: GGMLType, num_outputs: int, num_blocks: int, seed: int = 0):
    """Any integers, and scales and minima of both signs near 1 (K-quants multiply them)."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_outputs, num_blocks, type_.block_bytes), dtype=np.uint8)
    for offset in HALVES[type_.name]:
        halves = rng.normal(0, 1, (num_outputs, num_blocks)).astype(np.float16)
        blocks[:, :, offset : offset + 2] = halves.view(np.uint8).reshape(num_outputs, -1, 2)
    return torch.from_numpy(blocks.reshape(num_outputs, -1))


def operands(type_: GGMLType, num_rows: int, num_blocks: int, num_outputs: int, dtype):
    generator = torch.Generator().manual_seed(num_rows + num_blocks + num_outputs)
    x = torch.randn(num_rows, num_blocks * type_.block_values, generator=generator).to(dtype)
    bias = torch.randn(num_outputs, generator=generator).to(dtype)
    return x, random_blocks(type_, num_outputs, num_blocks), bias


def quantized(x: torch.Tensor) -> torch.Tensor:
    """x as quantized_linear sees it, in float64."""
    groups = x.float().unflatten(1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True)
    steps = torch.full_like(largest, 127) / largest
    integers = (groups * torch.where(largest > 0, steps, 0)).round()
    return (integers.double() * (largest / torch.full_like(largest, 127)).double()).flatten(1)


def multiply(x, blocks, type_, bias=None, **options):
    packed = ops.pack_quantized_weight(blocks, type_.id)
    return ops.quantized_linear(x, packed, type_.id, bias, len(blocks), **options)


@each_type
@each_dtype
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 2, 33), (7, 3, 31), (13, 2, 96), (40, 17, 70), (200, 2, 32), (0, 1, 8)]
)
def test_the_product_with_quantized_rows_is_that_of_float64(type_, dtype, shape):
    x, blocks, bias = operands(type_, *shape, dtype)
    weight = ops.dequantize(blocks, type_.id, torch.float32).double()
    seen = quantized(x)
    expected = seen @ weight.T + bias.double()
    actual = multiply(x, blocks, type_, bias, float32_out=True)
    assert actual.dtype is torch.float32
    # The magnitudes that are summed: at most those of scale * integer, of the zero point's share
    # and of the minimum. Each group has a few roundings, each of them half an ulp.
    scale_of_group = weight.abs().unflatten(1, (-1, 16)).amax(-1).repeat_interleave(16, 1)
    num_roundings = 6 + 4 * x.shape[1] // 16
    bound = (8 * seen.abs() @ scale_of_group.T + bias.double().abs()) * num_roundings * 2**-24
    assert ((actual - expected).abs() <= bound).all()
    assert torch.equal(multiply(x, blocks, type_, bias), actual.to(dtype))


@each_type
def test_eight_bits_of_activations_lose_little(type_):
    x, blocks, _ = operands(type_, 20, 4, 64, torch.float32)
    expected = x.double() @ ops.dequantize(blocks, type_.id, torch.float32).double().T
    actual = multiply(x, blocks, type_)
    # A rounding error is uniform within half a step: 1 / sqrt(12) of about 2.3 sigma / 127.
    assert (actual - expected).norm() / expected.norm() < 0.01


@each_type
@each_dtype
def test_a_row_is_the_same_alone_in_any_tile_and_on_any_number_of_threads(
    type_, dtype, with_num_threads
):
    x, blocks, bias = operands(type_, NUM_ROWS[-1], 2, 130, dtype)
    together = multiply(x, blocks, type_, bias)
    for num_rows in NUM_ROWS[:-1]:
        for first in (0, 5, NUM_ROWS[-1] - num_rows):
            rows = slice(first, first + num_rows)
            assert torch.equal(multiply(x[rows], blocks, type_, bias), together[rows])
    for num_threads in (1, 2, 3):
        with_num_threads(num_threads)
        assert torch.equal(multiply(x, blocks, type_, bias), together)
        assert torch.equal(multiply(x[7:8], blocks, type_, bias), together[7:8])


@each_type
def test_an_output_is_the_same_whatever_outputs_are_beside_it(type_):
    x, blocks, _ = operands(type_, 5, 2, 70, torch.float32)
    whole = multiply(x, blocks, type_)
    part = multiply(x, blocks[37:51].contiguous(), type_)
    assert torch.equal(part, whole[:, 37:51])


@each_type
@pytest.mark.parametrize("num_rows", [1, 13])
def test_a_row_of_extreme_integers_is_exact(type_, num_rows):
    """Where 16-bit sums of products would overflow."""
    x = torch.full((num_rows, type_.block_values), 127.0)
    x[:, 1::2] = -127.0
    for pattern in (0x00, 0xFF, 0x7F, 0x80):
        blocks = torch.full((3, type_.block_bytes), pattern, dtype=torch.uint8)
        for offset in HALVES[type_.name]:
            blocks[:, offset : offset + 2] = torch.tensor([0, 0x3C], dtype=torch.uint8)  # 1.0
        weight = ops.dequantize(blocks, type_.id, torch.float32)
        for sign in (x, x.abs()):
            expected = sign.double() @ weight.double().T
            assert torch.equal(multiply(sign, blocks, type_).double(), expected)


@each_type
@each_dtype
def test_the_embedding_is_the_dequantized_row(type_, dtype):
    blocks = random_blocks(type_, 70, 3)
    packed = ops.pack_quantized_weight(blocks, type_.id)
    token_ids = torch.tensor([69, 0, 31, 32, 5, 5, 64])
    rows = ops.quantized_embedding(token_ids, packed, type_.id, 70, 3 * type_.block_values, dtype)
    assert torch.equal(rows, ops.dequantize(blocks, type_.id, dtype)[token_ids])


@each_dtype
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_spoils_its_own_row_alone(dtype, bad):
    type_ = TYPES[1]
    x, blocks, _ = operands(type_, 20, 3, 40, dtype)
    clean = multiply(x, blocks, type_)
    x[4, 50] = bad
    spoilt = multiply(x, blocks, type_)
    assert spoilt[4].isnan().all()
    others = torch.arange(20) != 4
    assert torch.equal(spoilt[others], clean[others])


@each_dtype
@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1e-38, 1e38])
def test_zeros_and_extreme_magnitudes_give_numbers(dtype, magnitude):
    type_ = TYPES[0]
    x, blocks, _ = operands(type_, 1, 1, 8, dtype)
    y = multiply(x.sign() * magnitude, blocks, type_, float32_out=True)
    assert not y.isnan().any()
    if magnitude < 1:
        assert y.abs().max() <= 32 * 8 * 8 * magnitude


def test_rows_of_x_may_lie_apart():
    type_ = TYPES[0]
    x, blocks, bias = operands(type_, 6, 2, 24, torch.float32)
    wide = torch.full((6, 100), torch.nan)
    wide[:, 10:74] = x
    apart = multiply(wide[:, 10:74], blocks, type_, bias)
    assert torch.equal(apart, multiply(x, blocks, type_, bias))


@each_type
def test_packed_weights_take_about_as_many_bytes_as_the_files(type_):
    blocks = random_blocks(type_, 64, 2)
    assert ops.pack_quantized_weight(blocks, type_.id).numel() <= 1.03 * blocks.numel()


@each_type
def test_opcheck(type_):
    x, blocks, bias = operands(type_, 3, 1, 40, torch.bfloat16)
    packed = ops.pack_quantized_weight(blocks, type_.id)
    torch.library.opcheck(torch.ops.pyengine.pack_quantized_weight.default, (blocks, type_.id))
    for arguments in [(bias, 40, False), (None, 40, True)]:
        torch.library.opcheck(
            torch.ops.pyengine.quantized_linear.default, (x, packed, type_.id, *arguments)
        )
    torch.library.opcheck(
        torch.ops.pyengine.quantized_embedding.default,
        (torch.tensor([3, 39]), packed, type_.id, 40, type_.block_values, torch.bfloat16),
    )


def test_bad_arguments_are_named():
    x = torch.zeros(3, 64)
    blocks = torch.zeros(40, 36, dtype=torch.uint8)
    packed = ops.pack_quantized_weight(blocks, 2)
    for arguments, message in [
        ((x[0], packed, 2, None, 40), "x must have 2 dimensions"),
        ((x.T, packed, 2, None, 40), "x must have contiguous rows"),
        ((x, packed, 1, None, 40), r"ggml_type must be one of 2 \(Q4_0\), .* 14 \(Q6_K\), got 1"),
        ((x[:, :33], packed, 2, None, 40), "the number of inputs of x must be a multiple of 32"),
        ((x, packed, 3, None, 40), r"packed_weight must have shape \[2, 1280\], got \[2, 1152\]"),
        ((x, packed, 2, None, 65), r"packed_weight must have shape \[3, 1152\]"),
        ((x, packed.float(), 2, None, 40), "packed_weight must be Byte, got Float"),
        ((x, packed, 2, torch.zeros(39), 40), "bias must have 40 elements"),
        ((x, packed, 2, torch.zeros(40).bfloat16(), 40), "bias must be Float, got BFloat16"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            ops.quantized_linear(*arguments)
    for arguments, message in [
        ((blocks, 30), "ggml_type must be one of"),
        ((blocks, 3), "blocks must have rows of whole Q4_1 blocks of 20 bytes, got rows of 36"),
        ((blocks.T, 2), "blocks must be contiguous"),
        ((blocks.float(), 2), "blocks must be Byte, got Float"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            ops.pack_quantized_weight(*arguments)
    ids = torch.tensor([0, 40])
    for arguments, message in [
        ((ids, packed, 2, 40, 64, torch.float32), r"token_ids\[1\] must be in \[0, 40\), got 40"),
        ((ids, packed, 2, 40, 32, torch.float32), r"packed_weight must have shape \[2, 576\]"),
        ((ids, packed, 2, 40, 33, torch.float32), "row_size must be a multiple of 32"),
        ((ids, packed, 2, 40, 64, torch.float16), "dtype must be Float or BFloat16, got Half"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            ops.quantized_embedding(*arguments)
