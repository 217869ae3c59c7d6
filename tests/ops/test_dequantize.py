"""The independent reference is the `gguf` package, written by the authors of the format."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GgmlType

from pyengine import ops

SUPPORTED = [GgmlType(number) for number in ops.GGML_BLOCKS]
# Those that the gguf package writes.
QUANTIZABLE = [ggml_type for ggml_type in SUPPORTED if not ggml_type.name.endswith("_K")]


def random_blocks(ggml_type, rows, num_blocks, seed=0):
    """Any bytes are valid blocks; half-precision fields come out NaN or infinite now and then."""
    rng = np.random.default_rng(seed)
    num_bytes = gguf.GGML_QUANT_SIZES[ggml_type][1]
    return rng.integers(0, 256, (rows, num_blocks * num_bytes), dtype=np.uint8)


def expected(data, ggml_type):
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.array(gguf.quants.dequantize(data, ggml_type)))


def assert_same_values(got, want):
    """Bitwise, where a NaN is a NaN whatever its payload."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert torch.equal(got.isnan(), want.isnan())
    bits = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[got.dtype]
    assert torch.equal(got.nan_to_num(0.0).view(bits), want.nan_to_num(0.0).view(bits))


def test_block_sizes_are_those_of_the_format():
    assert {t.value: gguf.GGML_QUANT_SIZES[t] for t in SUPPORTED} == ops.GGML_BLOCKS


@pytest.mark.parametrize("ggml_type", SUPPORTED, ids=lambda t: t.name)
@pytest.mark.parametrize(("rows", "num_blocks"), [(1, 1), (3, 5), (64, 40)])
def test_random_blocks_decode_bit_for_bit(ggml_type, rows, num_blocks):
    data = random_blocks(ggml_type, rows, num_blocks)
    got = ops.dequantize(torch.from_numpy(data), ggml_type.value, torch.float32)
    assert_same_values(got, expected(data, ggml_type))


@pytest.mark.parametrize("ggml_type", SUPPORTED, ids=lambda t: t.name)
def test_bfloat16_is_the_float32_value_rounded_to_nearest_even(ggml_type):
    data = random_blocks(ggml_type, 3, 70)
    got = ops.dequantize(torch.from_numpy(data), ggml_type.value, torch.bfloat16)
    assert_same_values(got, expected(data, ggml_type).bfloat16())


@pytest.mark.parametrize("ggml_type", QUANTIZABLE, ids=lambda t: t.name)
def test_quantized_weights_decode_bit_for_bit(ggml_type):
    weights = np.random.default_rng(1).normal(0, 0.02, (16, 512)).astype(np.float32)
    data = np.ascontiguousarray(gguf.quants.quantize(weights, ggml_type)).view(np.uint8)
    got = ops.dequantize(torch.from_numpy(data), ggml_type.value, torch.float32)
    assert_same_values(got, expected(data, ggml_type))
    assert np.abs(got.numpy() - weights).max() < 0.02


def test_every_half_float_decodes_exactly():
    halves = np.arange(2**16, dtype=np.uint16).view(np.uint8)[None]
    got = ops.dequantize(torch.from_numpy(halves), GgmlType.F16.value, torch.float32)
    assert_same_values(got, torch.from_numpy(halves).view(torch.float16).float())


def test_no_rows_give_no_rows():
    data = torch.zeros(0, 34, dtype=torch.uint8)
    assert ops.dequantize(data, GgmlType.Q8_0.value, torch.float32).shape == (0, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": torch.zeros(34, dtype=torch.uint8)}, "data must have 2 dimensions"),
        ({"data": torch.zeros(1, 34)}, "data must be Byte, got Float"),
        ({"data": torch.zeros(34, 2, dtype=torch.uint8).t()}, "data must be contiguous"),
        (
            {"data": torch.zeros(1, 67, dtype=torch.uint8)},
            "data must have rows of whole Q8_0 blocks of 34 bytes, got rows of 67 bytes",
        ),
        (
            {"ggml_type": GgmlType.Q2_K.value},
            "ggml_type must be one of 0 \\(F32\\), 1 \\(F16\\), .*30 \\(BF16\\), got 10",
        ),
        ({"dtype": torch.float16}, "dtype must be Float or BFloat16, got Half"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    good = {
        "data": torch.zeros(1, 34, dtype=torch.uint8),
        "ggml_type": GgmlType.Q8_0.value,
        "dtype": torch.float32,
    }
    with pytest.raises(RuntimeError, match=message):
        ops.dequantize(**{**good, **arguments})


@pytest.mark.parametrize("ggml_type", SUPPORTED, ids=lambda t: t.name)
def test_passes_opcheck(ggml_type):
    data = torch.from_numpy(random_blocks(ggml_type, 2, 3) & 0x3F)  # no NaN
    for dtype in (torch.float32, torch.bfloat16):
        torch.library.opcheck(torch.ops.pyengine.dequantize, (data, ggml_type.value, dtype))
