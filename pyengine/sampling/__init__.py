"""From logits to tokens."""

from pyengine.sampling.sampler import SampledTokens, SamplingInputs, sample, token_logprobs

__all__ = ["SampledTokens", "SamplingInputs", "sample", "token_logprobs"]
