"""From logits to tokens."""

from pyengine.sampling.sampler import (
    DrawnLogprobs,
    DrawnTokens,
    SampledTokens,
    SamplingInputs,
    sample,
    token_logprobs,
)

__all__ = [
    "DrawnLogprobs",
    "DrawnTokens",
    "SampledTokens",
    "SamplingInputs",
    "sample",
    "token_logprobs",
]
