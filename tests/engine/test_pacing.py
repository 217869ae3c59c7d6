"""Prompts that arrive while streams run are fed in chunks that keep the streams' gaps short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.config import EngineConfig
from pyengine.engine.pacing import PrefillPacer
from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo

WIDE = 512


def step_ms(num_decodes: int, num_prompt_tokens: int, ms_per_token: float) -> float:
    """A machine: a step costs as much as 10 tokens, and each token alike."""
    return (10 + num_decodes + num_prompt_tokens) * ms_per_token


def settle(pacer: PrefillPacer, num_decodes: int, ms_per_token: float) -> int:
    for _ in range(60):
        num_tokens = pacer.limit(num_decodes, 0)
        pacer.observe(num_decodes, num_tokens, step_ms(num_decodes, num_tokens, ms_per_token))
    return pacer.limit(num_decodes, 0)


@given(st.integers(1, 64), st.floats(0.05, 0.5))
def test_a_step_becomes_as_long_as_it_may_be(num_decodes, ms_per_token):
    pacer = PrefillPacer(40.0, WIDE)
    num_tokens = settle(pacer, num_decodes, ms_per_token)
    ms = step_ms(num_decodes, num_tokens, ms_per_token)
    if num_tokens < WIDE:  # else more would fit, if there was more
        assert ms > 36 - 2 * ms_per_token
    if num_tokens > PrefillPacer.MIN_TOKENS + num_decodes:  # else less would be none
        assert ms <= 36 + 1e-6


def test_where_decodes_alone_take_too_long_prompts_still_move():
    pacer = PrefillPacer(40.0, WIDE)
    for num_decodes in (1, 30):
        assert settle(pacer, num_decodes, ms_per_token=10) == PrefillPacer.MIN_TOKENS + num_decodes


def test_a_queue_of_prompts_drains_in_proportion_to_its_length():
    pacer = PrefillPacer(40.0, WIDE)
    bound = settle(pacer, 4, ms_per_token=0.5)
    assert pacer.limit(4, 20 * bound) == bound
    assert pacer.limit(4, 40 * 200) == 200
    assert pacer.limit(4, 10**6) == WIDE


def test_without_streams_nothing_is_held_back():
    pacer = PrefillPacer(40.0, WIDE)
    settle(pacer, 8, ms_per_token=1)
    assert pacer.limit(0, 0) == WIDE


def test_the_first_measured_prefill_bounds_the_first_step_with_streams():
    pacer = PrefillPacer(40.0, WIDE)
    pacer.observe(0, WIDE, 512.0)
    assert pacer.limit(4, 0) == 36


def test_a_prefill_without_streams_does_not_raise_the_bound():
    pacer = PrefillPacer(40.0, WIDE)
    bound = settle(pacer, 16, ms_per_token=0.5)
    pacer.observe(0, WIDE, 0.5 * (10 + WIDE))
    assert pacer.limit(16, 0) == bound


def test_little_to_feed_does_not_raise_the_bound():
    pacer = PrefillPacer(40.0, WIDE)
    bound = settle(pacer, 4, ms_per_token=0.5)
    pacer.observe(4, 20, 1.0)
    assert pacer.limit(4, 0) == bound


def test_one_fast_step_at_most_doubles_the_next():
    pacer = PrefillPacer(40.0, WIDE)
    bound = settle(pacer, 4, ms_per_token=0.5)
    pacer.observe(4, bound, 0.001)
    assert bound < pacer.limit(4, 0) <= 2 * (bound + 1)


def test_a_long_prompt_goes_in_small_chunks_while_a_stream_runs_and_in_large_ones_alone():
    harness = Harness(num_kv_blocks=256, max_num_batched_tokens=64)
    harness.engine._pacer.observe(0, 64, step_ms=1e12)  # a machine as slow as can be
    harness.engine._pacer.observe = lambda *_: None
    harness.add(prompt_of(100, seed=1), greedy(3))
    harness.run()
    harness.add(prompt_of(3), greedy(40))
    harness.step()
    harness.add(prompt_of(100, seed=2), greedy(3))
    harness.run()
    assert harness.fed("r0") == [64, 36, 1, 1]
    assert harness.fed("r2") == [17] * 5 + [15, 1, 1]
    assert harness.fed("r1") == [3] + [1] * 39
    for k, (prompt, params) in enumerate(
        [(prompt_of(100, seed=1), greedy(3)), (prompt_of(3), greedy(40))]
    ):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, params))


def test_a_target_of_nothing_is_refused():
    with pytest.raises(ValueError, match="target_itl_ms must be more than 0, got 0"):
        EngineConfig(model="tiny", target_itl_ms=0)
