"""The independent reference is the `gguf` package, written by the authors of the format."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GgmlType
from hypothesis import given
from hypothesis import strategies as st

from pyengine import ops

FORMATS = [GgmlType.Q8_0, GgmlType.Q4_0, GgmlType.Q4_1]
FOUR_BITS = [GgmlType.Q4_0, GgmlType.Q4_1]
LARGEST_HALF = 65504.0
# Of the bytes of each format for weights_of("heavy tails").
EXPECTED_DIGESTS = [4369296984, 2411755918, 2557409325]


def weights_of(distribution: str, rows: int = 64, size: int = 512) -> torch.Tensor:
    generator = np.random.default_rng(0)
    draw = {
        "normal": lambda shape: generator.normal(0, 1, shape),
        "laplace": lambda shape: generator.laplace(0, 1, shape),
        "heavy tails": lambda shape: generator.standard_t(5, shape),
    }[distribution]
    return torch.from_numpy(draw((rows, size)).astype(np.float32) * 0.02)


def decode(data: torch.Tensor, ggml_type: GgmlType) -> torch.Tensor:
    """By the reference."""
    return torch.from_numpy(np.array(gguf.quants.dequantize(data.numpy(), ggml_type)))


def requantize(weight: torch.Tensor, ggml_type: GgmlType) -> torch.Tensor:
    return decode(ops.quantize(weight, ggml_type.value), ggml_type)


def squared_error(values: torch.Tensor, weight: torch.Tensor) -> float:
    return float(((values.double() - weight.double()) ** 2).sum())


def plain_error(weight: torch.Tensor, ggml_type: GgmlType) -> float:
    """Of ggml's own rounding."""
    return squared_error(
        torch.from_numpy(
            gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), ggml_type), ggml_type)
        ),
        weight,
    )


@pytest.mark.parametrize("distribution", ["normal", "laplace", "heavy tails"])
@pytest.mark.parametrize(
    ("ggml_type", "most"), [(GgmlType.Q8_0, 1.0), (GgmlType.Q4_0, 0.93), (GgmlType.Q4_1, 0.82)]
)
def test_the_squared_error_is_below_that_of_plain_rounding(ggml_type, most, distribution):
    """By these ratios; a grid with all minima of 1,000 beginnings would reach 0.91 and 0.78."""
    weight = weights_of(distribution)
    error = squared_error(requantize(weight, ggml_type), weight)
    assert error < most * plain_error(weight, ggml_type)


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
def test_no_block_is_worse_than_plain_rounding(ggml_type):
    weight = weights_of("heavy tails", rows=400, size=32)
    for row in weight.split(1):
        error = squared_error(requantize(row, ggml_type), row)
        # Plain 8-bit rounding divides by a scale that isn't the stored one.
        assert error <= plain_error(row, ggml_type) * (1 + 1e-6)


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
def test_a_code_is_the_nearest_one_of_its_block(ggml_type):
    weight = weights_of("normal", rows=50, size=32)
    values = requantize(weight, ggml_type)
    for row, decoded in zip(weight, values, strict=True):
        # Whatever the scale: no other value that occurs in the block is nearer.
        nearest = (row[:, None] - decoded.unique()[None]).abs().min(1).values
        torch.testing.assert_close((row - decoded).abs(), nearest, rtol=1e-5, atol=1e-7)


def representable(ggml_type: GgmlType, rows: int = 40) -> torch.Tensor:
    """Values that a block holds exactly, all codes being used."""
    generator = torch.Generator().manual_seed(0)
    scale = (torch.rand(rows, 1, generator=generator) * 0.01 + 1e-4).half().float()
    minimum = (torch.rand(rows, 1, generator=generator) * 0.1 - 0.1).half().float()
    if ggml_type is GgmlType.Q8_0:
        codes = torch.randint(-127, 128, (rows, 32), generator=generator).float()
        codes[:, 5], minimum = -127, torch.zeros(1)
    else:
        low = -8 if ggml_type is GgmlType.Q4_0 else 0
        codes = (torch.rand(rows, 32, generator=generator).argsort(1) % 16 + low).float()
        minimum = torch.zeros(1) if ggml_type is GgmlType.Q4_0 else minimum
    return scale * codes + minimum


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
def test_representable_values_come_back_exactly(ggml_type):
    weight = representable(ggml_type)
    assert torch.equal(requantize(weight, ggml_type), weight)


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
def test_what_was_quantized_once_loses_next_to_nothing_the_second_time(ggml_type):
    """Of blocks that don't use their first or last code, a few get another grid."""
    once = requantize(weights_of("laplace"), ggml_type)
    twice = requantize(once, ggml_type)
    assert squared_error(twice, once) < 0.01 * squared_error(once, weights_of("laplace"))


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
def test_the_minus_of_a_weight_is_quantized_as_well(ggml_type):
    weight = weights_of("laplace")
    error = squared_error(requantize(weight, ggml_type), weight)
    assert squared_error(requantize(-weight, ggml_type), -weight) == pytest.approx(error, rel=1e-2)


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_a_block_of_one_value_keeps_it(ggml_type, value):
    weight = torch.full((3, 64), value)
    torch.testing.assert_close(requantize(weight, ggml_type), weight, rtol=2e-3, atol=0)


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
@pytest.mark.parametrize("scale", [1e-38, 1e-9, 1e-6, 1e6, 1e38])
def test_extreme_weights_give_finite_values(ggml_type, scale):
    weight = weights_of("normal", rows=3) * scale
    values = requantize(weight, ggml_type)
    assert values.isfinite().all()
    # The scale of a block is a half float: below 2^-25 it is 0, above 65504 that.
    largest = LARGEST_HALF * 128
    assert (values - weight.clamp(-largest, largest)).abs().max() <= max(
        2**-17, largest, float(weight.abs().max())
    )


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(0, 0), (16, 37), (36, 63)])
def test_a_weight_that_is_not_finite_is_refused(ggml_type, dtype, bad, place):
    weight = weights_of("normal", rows=37, size=64).to(dtype)
    weight[place] = bad
    with pytest.raises(RuntimeError, match="weight must be finite to be quantized"):
        ops.quantize(weight, ggml_type.value)


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_depends_on_its_own_values_alone(ggml_type, dtype):
    """Whatever row, batch or thread it is in."""
    weight = weights_of("heavy tails", rows=37, size=96).to(dtype)
    together = ops.quantize(weight, ggml_type.value)
    alone = torch.cat([ops.quantize(row, ggml_type.value) for row in weight.split(1)])
    assert torch.equal(together, alone)
    blocks = torch.cat([ops.quantize(row, ggml_type.value) for row in weight.view(-1, 32).split(1)])
    assert torch.equal(together.view(-1), blocks.view(-1))
    many = ops.quantize(weight.repeat(100, 1), ggml_type.value)  # several threads
    assert torch.equal(many, together.repeat(100, 1))


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
def test_bfloat16_is_quantized_as_its_float32_values(ggml_type):
    weight = weights_of("normal").bfloat16()
    ours = ops.quantize(weight, ggml_type.value)
    assert torch.equal(ours, ops.quantize(weight.float(), ggml_type.value))


def test_every_instruction_set_gives_these_bytes():
    """The hash is the same on all of them (test_every_isa.py runs this file on each)."""
    weight = weights_of("heavy tails")
    digests = [int(ops.quantize(weight, t.value).long().mul(31).cumsum(0).sum()) for t in FORMATS]
    assert digests == EXPECTED_DIGESTS


def test_a_scale_is_the_nearest_half_float():
    """The scale of a Q8_0 block of one value v is v / 127, rounded as NumPy rounds it."""
    values = np.abs(np.random.default_rng(3).standard_normal(4096).astype(np.float32))
    values *= 10.0 ** np.random.default_rng(4).uniform(-9, 6, 4096).astype(np.float32)
    weight = torch.zeros(4096, 32)
    weight[:, 7] = torch.from_numpy(values)
    scales = ops.quantize(weight, GgmlType.Q8_0.value)[:, :2].contiguous().view(torch.float16)
    expected = (values / np.float32(127)).clip(max=LARGEST_HALF).astype(np.float16)
    assert np.array_equal(scales[:, 0].numpy(), expected)


@given(
    st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=32, max_size=32)
)
def test_any_finite_block_is_at_most_as_far_off_as_plain_rounding(values):
    weight = torch.tensor([values])
    for ggml_type in FOUR_BITS:
        error = squared_error(requantize(weight, ggml_type), weight)
        with np.errstate(all="ignore"):
            assert error <= plain_error(weight, ggml_type) * (1 + 1e-5) or np.isnan(error)


def test_no_rows_give_no_rows():
    assert ops.quantize(torch.zeros(0, 64), GgmlType.Q4_1.value).shape == (0, 40)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": torch.zeros(32)}, "weight must have 2 dimensions"),
        ({"weight": torch.zeros(2, 32).half()}, "weight must be Float or BFloat16, got Half"),
        ({"weight": torch.zeros(32, 32).t()[:, ::2]}, "weight must be contiguous"),
        (
            {"weight": torch.zeros(2, 48)},
            "weight must have rows of whole Q4_0 blocks of 32 elements, got rows of 48",
        ),
        (
            {"ggml_type": GgmlType.Q4_K.value},
            r"ggml_type must be one of 2 \(Q4_0\), 3 \(Q4_1\), 8 \(Q8_0\), got 12",
        ),
        ({"ggml_type": GgmlType.Q2_K.value}, r"ggml_type must be one of .*, got 10"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    good = {"weight": torch.zeros(2, 32), "ggml_type": GgmlType.Q4_0.value}
    with pytest.raises(RuntimeError, match=message):
        ops.quantize(**{**good, **arguments})


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda t: t.name)
def test_passes_opcheck(ggml_type):
    for dtype in (torch.float32, torch.bfloat16):
        weight = weights_of("normal", 3, 64).to(dtype)
        torch.library.opcheck(torch.ops.pyengine.quantize, (weight, ggml_type.value))
