"""Float weights that are quantized while they are read."""

import pytest
import torch

from pyengine.errors import ModelLoadError
from pyengine.models import ModelConfig
from pyengine.ops import dequantize
from pyengine.weights.quantizing import QuantizingSource
from tests.tiny import CONFIG, RandomWeights

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
PROJECTION = "model.layers.1.mlp.down_proj.weight"
NORM = "model.norm.weight"


def weights(**changes) -> RandomWeights:
    return RandomWeights(ModelConfig.from_dict(CONFIG | changes))


@pytest.mark.parametrize(
    ("quantization", "types"),
    [
        ("int8", {EMBEDDING: "Q8_0", HEAD: "Q8_0", PROJECTION: "Q8_0"}),
        ("int4", {EMBEDDING: "Q8_0", HEAD: "Q8_0", PROJECTION: "Q4_1"}),
    ],
)
def test_int4_leaves_embedding_and_head_at_eight_bits(quantization, types):
    source = QuantizingSource(weights(), quantization)
    assert {name: source.load_quantized(name).type.name for name in types} == types


# Half of the greatest step between codes: of 32 normal values the range is below 8 deviations.
@pytest.mark.parametrize(("quantization", "step"), [("int8", 8 / 254), ("int4", 8 / 15)])
def test_the_values_are_those_of_the_checkpoint_but_for_rounding(quantization, step):
    source = QuantizingSource(weights(), quantization)
    assert source.names() == weights().names()
    expected = weights().load(PROJECTION, torch.float32)
    quantized = source.load_quantized(PROJECTION)
    assert quantized.shape == expected.shape
    values = dequantize(quantized.data, quantized.type.id, torch.float32)
    assert (values - expected).square().mean().sqrt() < step / 2 * expected.std()


def test_norms_are_left_as_they_are():
    source = QuantizingSource(weights(), "int8")
    assert source.load_quantized(NORM) is None
    norm = weights().load(NORM, torch.bfloat16)
    assert torch.equal(source.load(NORM, torch.bfloat16), norm)


def test_rows_that_are_not_whole_blocks_are_left_as_they_are():
    source = QuantizingSource(weights(intermediate_size=100), "int4")
    assert source.load_quantized(PROJECTION) is None
    assert source.load_quantized(EMBEDDING) is not None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_named(bad):
    class Broken(RandomWeights):
        def load(self, name, dtype):
            tensor = super().load(name, dtype)
            if name == PROJECTION:
                tensor[3, 4] = bad
            return tensor

    source = QuantizingSource(Broken(ModelConfig.from_dict(CONFIG)), "int4")
    with pytest.raises(ModelLoadError, match=f"tensor '{PROJECTION}' can't be quantized: it holds"):
        source.load_quantized(PROJECTION)
