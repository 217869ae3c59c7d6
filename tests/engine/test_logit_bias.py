"""Biases on logits: added to those of the tokens named, and to no others'."""

import pytest

from pyengine.errors import InvalidRequestError
from pyengine.sampling_params import SamplingParams
from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo

FIRST, SECOND = prompt_of(10, seed=1), prompt_of(10, seed=2)


def test_a_bias_of_100_forces_a_token_and_one_of_minus_100_keeps_it_out():
    free = solo(FIRST).outputs[0].token_ids
    assert solo(FIRST, greedy(5, logit_bias={7: 100})).outputs[0].token_ids == [7] * 5
    banned = solo(FIRST, greedy(12, logit_bias={free[0]: -100})).outputs[0].token_ids
    assert free[0] not in banned


def test_a_bias_is_as_much_as_it_says():
    """It tips the scales between the two likeliest tokens just above their distance."""
    [output] = solo(FIRST, greedy(1, logprobs=2)).outputs
    best, second = output.logprobs[0].top_token_ids
    gap = output.logprobs[0].top_logprobs[0] - output.logprobs[0].top_logprobs[1]
    below = solo(FIRST, greedy(1, logit_bias={second: gap * 0.99}))
    above = solo(FIRST, greedy(1, logit_bias={second: gap * 1.01}))
    assert below.outputs[0].token_ids == [best]
    assert above.outputs[0].token_ids == [second]


def test_log_probabilities_are_those_before_the_bias():
    free = solo(FIRST, greedy(1, logprobs=3))
    biased = solo(FIRST, greedy(1, logprobs=3, logit_bias={7: 100}))
    assert biased.outputs[0].token_ids == [7]
    logprobs = biased.outputs[0].logprobs[0]
    assert logprobs.top_logprobs == free.outputs[0].logprobs[0].top_logprobs
    assert logprobs.logprob < logprobs.top_logprobs[-1]


def test_min_tokens_holds_against_a_bias_to_the_end():
    output = solo(FIRST, greedy(8, min_tokens=4, logit_bias={256: 100})).outputs[0]
    assert len(output.token_ids) == 5
    assert output.token_ids[-1] == 256


@pytest.mark.parametrize("max_draft_tokens", [0, 4])
def test_biases_are_each_requests_own_before_and_after_a_resume(max_draft_tokens):
    # Few tokens are left to choose from, so that guesses come up too.
    few = dict.fromkeys(range(5), 20.0)
    biased = SamplingParams(seed=4, max_tokens=14, logit_bias={9: -1.25, **few}, logprobs=2)
    penalized = greedy(14, logit_bias={5: 9.75}, frequency_penalty=2.0)
    free = greedy(14)
    harness = Harness(max_draft_tokens=max_draft_tokens)
    requests = [(FIRST, biased), (SECOND, penalized), (FIRST, free), (SECOND, biased)]
    for prompt, params in requests:
        harness.add(prompt, params)
    harness.run()
    assert harness.num_preemptions > 0
    for k, (prompt, params) in enumerate(requests):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, params))


def test_a_bias_on_a_token_outside_the_vocabulary_is_refused():
    with pytest.raises(InvalidRequestError, match="logit_bias holds the token id 272") as caught:
        Harness().add(FIRST, greedy(1, logit_bias={272: 1.0}))
    assert caught.value.param == "logit_bias"
