"""A model whose float weights are quantized at load says nearly what it said before."""

import dataclasses
import statistics

import pytest
import torch

from pyengine.config import EngineConfig
from pyengine.engine import Engine
from pyengine.engine.loading import LoadedModel, load
from pyengine.models import load_model
from pyengine.sampling_params import SamplingParams
from pyengine.weights import open_checkpoint
from pyengine.weights.quantizing import QuantizingSource

TEXT = """\
My Design in this Book is not to explain the Properties of Light by Hypotheses, but to propose and
prove them by Reason and Experiments: In order to which I shall premise the following Definitions
and Axioms. By the Rays of Light I understand its least Parts, and those as well Successive in the
same Lines, as Contemporary in several Lines. For it is manifest that Light consists of Parts, both
Successive and Contemporary; because in the same place you may stop that which comes one moment, and
let pass that which comes presently after; and in the same time you may stop it in any one place,
and let it pass in any other. For that part of Light which is stopp'd cannot be the same with that
which is let pass. The least Light or part of Light, which may be stopp'd alone without the rest of
the Light, or propagated alone, or do or suffer any thing alone, which the rest of the Light doth
not or suffers not, I call a Ray of Light.
"""


@pytest.fixture(scope="module")
def exact(demo_model_path) -> LoadedModel:
    config = EngineConfig(model=str(demo_model_path), dtype="float32", quantization="none")
    return load(config)


def scores_of(loaded: LoadedModel) -> tuple[float, list[int]]:
    """The mean log-probability of the text's tokens, and the likeliest token at each place."""
    engine = Engine(loaded, EngineConfig(model="demo", num_kv_blocks=64))
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    engine.add_request(engine.new_request("r", loaded.tokenizer.encode(TEXT), params))
    [update] = [u for u in iter_updates(engine) if u.prompt_logprobs is not None]
    places = update.prompt_logprobs[1:]
    return statistics.fmean(p.logprob for p in places), [p.top_token_ids[0] for p in places]


def iter_updates(engine: Engine):
    while engine.has_unfinished:
        yield from engine.step()


# The demo's floats come from 4-bit weights already. What changes: 8 bits of each activation's
# group, and of the weights what a second rounding changes.
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_demo_agrees_with_its_float_self(exact, demo_model_path, quantization):
    source = QuantizingSource(open_checkpoint(demo_model_path), quantization)
    model = load_model(exact.config, source, torch.float32, 1024, quantization=quantization)
    logprob, likeliest = scores_of(dataclasses.replace(exact, model=model))
    expected_logprob, expected = scores_of(exact)
    assert abs(logprob - expected_logprob) < 0.03
    agreement = statistics.fmean(a == b for a, b in zip(likeliest, expected, strict=True))
    assert agreement > 0.9


def test_weights_that_are_quantized_already_are_refused(demo_model_path):
    config = EngineConfig(model=str(demo_model_path), quantization="int4")
    with pytest.raises(
        ValueError, match=r"quantization must be auto or none .* got int4: to choose"
    ):
        load(config)
