"""Penalties tell the prompt from the output, before and after a resume."""

import pytest

from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo

FIRST, SECOND = prompt_of(10, seed=1), prompt_of(10, seed=2)
# Below what is neutral they are rewards, which change the greedy tokens of any model soon.
STRONG = [
    {"presence_penalty": -2.0},
    {"frequency_penalty": -2.0},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 2.0},
]


@pytest.mark.parametrize("penalty", STRONG)
def test_penalties_that_decide_tokens_decide_the_same_after_a_resume(penalty):
    params = greedy(12, **penalty)
    harness = Harness()
    harness.add(FIRST, params)
    harness.add(SECOND, params)
    harness.run()
    assert harness.fed("r1")[7] == 17  # the second was preempted with 7 generated tokens
    assert_same(harness.outputs["r0"], solo(FIRST, params))
    assert_same(harness.outputs["r1"], solo(SECOND, params))
    with_penalty = harness.outputs["r1"].outputs[0].token_ids
    assert with_penalty[7:] != solo(SECOND).outputs[0].token_ids[7:]


def prompt_that_holds_its_next_token() -> list[int]:
    """... which is chosen by a hair, so that any penalty on it would tip the scales."""
    for seed in range(100):
        prompt = prompt_of(20, seed)
        output = solo(prompt, greedy(1, logprobs=2)).outputs[0]
        first, second = output.logprobs[0].top_logprobs
        if output.token_ids[0] in prompt and first - second < 0.5:
            return prompt
    raise AssertionError("no such prompt")


def test_presence_and_frequency_do_not_count_the_prompt_but_repetition_does():
    prompt = prompt_that_holds_its_next_token()
    [token] = solo(prompt, greedy(1)).outputs[0].token_ids
    for name in ("presence_penalty", "frequency_penalty"):
        assert solo(prompt, greedy(1, **{name: 2.0})).outputs[0].token_ids == [token]
    assert solo(prompt, greedy(1, repetition_penalty=2.0)).outputs[0].token_ids != [token]


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_count_each_generated_token(name):
    free = solo(SECOND, greedy(12)).outputs[0].token_ids
    repeated = next(k for k, token in enumerate(free) if token in free[:k])
    with_penalty = solo(SECOND, greedy(12, **{name: 2.0})).outputs[0].token_ids
    assert with_penalty[:repeated] == free[:repeated]
    assert with_penalty[repeated] != free[repeated]
