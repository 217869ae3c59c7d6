"""Guessing tokens ahead changes how many steps a request takes, and nothing that a client sees."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.engine import FaultInjection
from pyengine.engine.drafter import Drafter
from pyengine.outputs import RequestOutput
from pyengine.sampling_params import SamplingParams
from tests.engine.harness import GREEDY, Harness, assert_same, greedy, prompt_of, solo
from tests.tiny import tiny_model

FIRST = prompt_of(10, seed=1)


class Oracle:
    """Knows the answer; guesses as many tokens as it is told, the first so many of them right."""

    def __init__(self, prompt: list[int], expected: RequestOutput, plan) -> None:
        self.tokens = [*prompt, *expected.outputs[0].token_ids]
        self.plan = plan  # () -> (how many to guess, how many right ones)

    def guess(self, token_ids: list[int], num_rows: int) -> list[int]:
        assert self.tokens[: len(token_ids)] == token_ids
        num_guesses, num_right = self.plan()
        right = self.tokens[len(token_ids) :][: min(num_guesses, num_right)]
        answer = self.tokens[len(token_ids) + len(right) :][:1] or [0]
        return right + [(answer[0] + 1) % 256] * (num_guesses - len(right))


def add_with_oracle(
    harness: Harness, prompt: list[int], params: SamplingParams, expected: RequestOutput, plan
) -> None:
    request_id = harness.add(prompt, params)
    harness.sequences[request_id][0].drafter = Oracle(prompt, expected, plan)


def test_right_guesses_save_steps():
    harness = Harness(max_draft_tokens=3)
    add_with_oracle(harness, FIRST, GREEDY, solo(FIRST), lambda: (3, 3))
    harness.run()
    # 1 token, then 4 a step; at last 3, since the last token is never fed.
    assert harness.fed("r0") == [10, 4, 4, 3]
    stats = harness.engine.stats()
    assert (stats.num_draft_tokens, stats.num_accepted_draft_tokens) == (8, 8)
    assert stats.num_generated_tokens == 12
    assert_same(harness.outputs["r0"], solo(FIRST))


def test_wrong_guesses_cost_rows_and_no_step():
    harness = Harness(max_draft_tokens=3)
    add_with_oracle(harness, FIRST, GREEDY, solo(FIRST), lambda: (3, 0))
    harness.run()
    assert harness.fed("r0") == [10] + [4] * 8 + [3, 2, 1]
    assert harness.engine.stats().num_accepted_draft_tokens == 0
    assert_same(harness.outputs["r0"], solo(FIRST))


def test_what_comes_after_a_wrong_guess_is_thrown_away_even_if_it_is_right():
    expected = solo(FIRST)
    answer = expected.outputs[0].token_ids

    class OneWrong(Oracle):
        def guess(self, token_ids, num_rows):
            right = self.tokens[len(token_ids) :][:3]
            return [(right[0] + 1) % 256, *right[1:]]

    harness = Harness(max_draft_tokens=3)
    request_id = harness.add(FIRST, GREEDY)
    harness.sequences[request_id][0].drafter = OneWrong(FIRST, expected, None)
    harness.run()
    assert harness.outputs["r0"].outputs[0].token_ids == answer
    assert harness.engine.stats().num_accepted_draft_tokens == 0


def test_the_prefix_cache_never_learns_a_wrong_guess():
    expected = solo(FIRST)
    harness = Harness(max_draft_tokens=8, enable_prefix_caching=True, num_kv_blocks=32)
    add_with_oracle(harness, FIRST, GREEDY, expected, lambda: (8, 1))
    harness.run()
    sequence = [*FIRST, *expected.outputs[0].token_ids]
    wrong = [*sequence[:13], (sequence[13] + 1) % 256, *[5] * 8]
    for prompt, num_cached in ((wrong, 12), ([*sequence, 5], 20)):
        request_id = harness.add(prompt, greedy(2))
        harness.run()
        assert harness.outputs[request_id].num_cached_tokens == num_cached
        assert_same(harness.outputs[request_id], solo(prompt, greedy(2)))


def test_guesses_take_no_block_from_anyone():
    """Two sequences that fill the pool together, to the last slot."""
    params = greedy(7)
    prompts = [prompt_of(10, seed) for seed in (1, 2)]
    harness = Harness(max_draft_tokens=8)
    for prompt in prompts:
        add_with_oracle(harness, prompt, params, solo(prompt, params), lambda: (8, 0))
    harness.run()
    assert harness.num_preemptions == 0
    for k, prompt in enumerate(prompts):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, params))


def test_a_step_that_feeds_a_prompt_guesses_nothing():
    params = greedy(30)
    harness = Harness(max_draft_tokens=3, num_kv_blocks=64, max_num_batched_tokens=16)
    add_with_oracle(harness, FIRST, params, solo(FIRST, params), lambda: (3, 3))
    harness.step()
    harness.step()
    harness.add(prompt_of(40), greedy(2))
    harness.run()
    assert harness.fed("r0")[:6] == [10, 4, 1, 1, 1, 4]
    assert harness.fed("r1") == [15, 15, 10, 1]
    assert_same(harness.outputs["r0"], solo(FIRST, params))


def test_a_step_with_guesses_has_at_most_sixteen_rows():
    params = greedy(30)
    prompts = [prompt_of(10, seed) for seed in range(3)]
    harness = Harness(max_draft_tokens=8, num_kv_blocks=64, max_num_batched_tokens=64)
    for prompt in prompts:
        add_with_oracle(harness, prompt, params, solo(prompt, params), lambda: (8, 8))
    harness.step()
    harness.step()
    assert [row.num_tokens for row in harness.batches[1].rows] == [9, 6, 1]
    harness.run()
    for k, prompt in enumerate(prompts):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, params))


@pytest.mark.parametrize("num_right", range(9))
def test_a_stop_string_ends_a_run_of_right_guesses_where_it_would_have_ended(num_right):
    loaded = tiny_model(letters=True)
    text = solo(FIRST, greedy(12), loaded).outputs[0].text
    params = greedy(12, stop=[text[4:6]], logprobs=2)
    expected = solo(FIRST, greedy(12), loaded)
    harness = Harness(loaded=loaded, max_draft_tokens=8)
    add_with_oracle(harness, FIRST, params, expected, lambda: (8, num_right))
    harness.run()
    assert_same(harness.outputs["r0"], solo(FIRST, params, loaded))


@settings(max_examples=150, deadline=None)
@given(
    rng=st.randoms(use_true_random=False),
    num_requests=st.integers(1, 4),
    num_kv_blocks=st.integers(12, 40),
    block_size=st.sampled_from([1, 2, 4, 16]),
    max_num_batched_tokens=st.sampled_from([4, 7, 16, 64]),
    enable_prefix_caching=st.booleans(),
    preempt_at_steps=st.frozensets(st.integers(0, 30), max_size=6),
    max_draft_tokens=st.integers(1, 9),
)
def test_any_guesses_give_what_a_request_gets_alone(
    rng: random.Random, num_requests: int, preempt_at_steps: frozenset[int], **options
):
    likely = frozenset(solo(FIRST).outputs[0].token_ids[3:5])
    loaded = tiny_model(eos_token_ids=likely, letters=True)
    if options["num_kv_blocks"] * options["block_size"] < 40:
        options["num_kv_blocks"] = -(-40 // options["block_size"])
    kinds = [
        {"temperature": 0},
        {"temperature": 1, "logprobs": 2},
        {"temperature": 0, "repetition_penalty": 1.4, "logprobs": 0},
        {"temperature": 0.8, "frequency_penalty": 1.0, "presence_penalty": 0.5},
        {"temperature": 0, "min_tokens": 7},
        {"temperature": 1, "top_p": 0.7, "stop": ["a", "qu"]},
        {"temperature": 1, "top_k": 9, "prompt_logprobs": 1},
    ]
    harness = Harness(FaultInjection(preempt_at_steps=preempt_at_steps), loaded, **options)
    expected = {}
    for number in range(num_requests):
        params = SamplingParams(max_tokens=rng.randrange(7, 20), seed=number, **rng.choice(kinds))
        prompt = prompt_of(rng.randrange(1, 20), rng.randrange(2))
        answer = solo(prompt, params, loaded)
        add_with_oracle(
            harness, prompt, params, answer, lambda: (rng.randrange(10), rng.randrange(10))
        )
        expected[f"r{number}"] = answer
        for _ in range(rng.randrange(3)):
            harness.step()
    harness.run()
    for request_id, answer in expected.items():
        assert_same(harness.outputs[request_id], answer)


def test_a_model_that_repeats_itself_is_found_out_by_look_up():
    """Penalties that reward what was said before make the tiny model go round in circles."""
    params = greedy(40, frequency_penalty=-2.0)
    harness = Harness(max_draft_tokens=8, num_kv_blocks=64)
    harness.add(FIRST, params)
    harness.run()
    stats = harness.engine.stats()
    assert stats.num_accepted_draft_tokens > 20
    assert stats.num_steps < 20
    assert_same(harness.outputs["r0"], solo(FIRST, params))


def test_a_guess_is_what_followed_before():
    assert Drafter(2).guess([1, 2, 3, 4, 5, 6, 1, 2, 3], num_rows=1) == [4, 5]
    assert Drafter(2).guess([1, 2, 3, 4, 5, 6, 1, 2], num_rows=1) == []


def test_the_larger_the_batch_the_fewer_guesses_pay():
    tokens = [1, 2, 3] * 5
    lengths = [len(Drafter(99).guess(tokens, num_rows)) for num_rows in (1, 2, 4, 5, 64)]
    assert lengths == [2, 1, 1, 0, 0]


def test_guesses_that_prove_right_become_longer_even_if_they_were_not_fed():
    loop = [1, 2, 3] * 20
    drafter = Drafter(8)
    assert drafter.guess(loop[:15], num_rows=16) == []
    for length in range(16, 40):
        guessed = drafter.guess(loop[:length], num_rows=16)
    assert len(guessed) == 8


def test_guesses_that_prove_wrong_end():
    loop = [1, 2, 3] * 5
    drafter = Drafter(8)
    lengths = []
    for other in range(10, 30):
        lengths.append(len(drafter.guess(loop, num_rows=1)))
        loop = [*loop, other, 1, 2, 3]
    assert lengths[0] == 2
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0
