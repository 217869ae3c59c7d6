"""The n sequences of a request: the first computes the prompt, the others take it over."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.engine import FaultInjection
from pyengine.sampling_params import SamplingParams
from tests.engine.harness import Harness, assert_same, prompt_of, solo


def sampled(n: int, max_tokens: int = 6, **options) -> SamplingParams:
    return SamplingParams(n=n, temperature=1, seed=3, max_tokens=max_tokens, logprobs=2, **options)


def num_fed(harness: Harness) -> int:
    return sum(batch.num_tokens for batch in harness.batches)


# In one step, and in chunks.
@pytest.mark.parametrize("budget", [512, 48])
def test_the_prompt_of_four_sequences_is_computed_once(budget):
    prompt, params = prompt_of(200), sampled(4)
    harness = Harness(
        enable_prefix_caching=True,
        block_size=16,
        num_kv_blocks=64,
        max_num_batched_tokens=budget,
    )
    harness.add(prompt, params)
    harness.run()
    # Once the whole prompt, three times what follows its 12 full blocks, then the tokens sampled.
    assert num_fed(harness) == 200 + 3 * 8 + 4 * 5
    stats = harness.engine.stats()
    assert (stats.num_prefix_queried_tokens, stats.num_cached_tokens) == (800, 3 * 192)
    # The client's prompt was not cached, whatever its own sequences found.
    assert harness.outputs["r0"].num_cached_tokens == 0
    assert_same(harness.outputs["r0"], solo(prompt, params))


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ({"enable_prefix_caching": False}, sampled(3)),
        # The prompt's log-probabilities come from its logits, so each sequence computes them.
        ({"enable_prefix_caching": True}, sampled(3, prompt_logprobs=1)),
        ({"enable_prefix_caching": True, "block_size": 16}, sampled(3)),  # no full block
    ],
)
def test_sequences_that_could_share_nothing_start_at_once(options, params):
    harness = Harness(num_kv_blocks=24, **options)
    harness.add(prompt_of(10), params)
    harness.step()
    assert [row.num_tokens for row in harness.batches[0].rows] == [10, 10, 10]
    harness.run()


def test_sequences_whose_prompt_is_cached_start_at_once():
    prompt = prompt_of(9)
    harness = Harness(enable_prefix_caching=True, num_kv_blocks=24)
    harness.add(prompt, sampled(1))
    harness.run()
    harness.add(prompt, sampled(3))
    harness.run()
    assert [row.num_tokens for row in harness.batches[6].rows] == [1, 1, 1]
    assert harness.outputs["r1"].num_cached_tokens == 8


def test_the_others_go_on_when_the_first_has_lost_its_blocks():
    prompt, params = prompt_of(20), sampled(3, max_tokens=4)
    faults = FaultInjection(preempt_at_steps=frozenset({1, 4}))
    harness = Harness(
        faults, enable_prefix_caching=True, num_kv_blocks=24, max_num_batched_tokens=8
    )
    harness.add(prompt, params)
    seen = []
    for _ in range(3):
        harness.step()
        seen.append([sequence.status.name for sequence in harness.sequences["r0"]])
    assert seen == [[first, "WAITING", "WAITING"] for first in ("RUNNING", "PREEMPTED", "RUNNING")]
    harness.run()
    assert harness.num_preemptions == 2
    assert_same(harness.outputs["r0"], solo(prompt, params))


def test_the_others_go_on_when_the_first_ended_with_its_first_token():
    prompt = prompt_of(20)
    first_token = solo(prompt, sampled(1)).outputs[0].token_ids[0]
    params = sampled(3, stop_token_ids=[first_token])
    harness = Harness(enable_prefix_caching=True, num_kv_blocks=24)
    harness.add(prompt, params)
    harness.run()
    assert harness.outputs["r0"].outputs[0].finish_reason == "stop"
    assert num_fed(harness) < 2 * 20
    assert_same(harness.outputs["r0"], solo(prompt, params))


def test_an_abort_while_the_others_wait_leaves_nothing():
    harness = Harness(enable_prefix_caching=True, max_num_batched_tokens=8)
    harness.add(prompt_of(20), sampled(3))
    harness.step()
    harness.engine.abort_request("r0")
    harness.check_nothing_left()
    harness.add(prompt_of(20), sampled(3))
    harness.run()


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 8), st.integers(0, 4)),
        min_size=1,
        max_size=5,
    ),
    budget=st.sampled_from([1, 3, 8, 64]),
    max_num_seqs=st.integers(1, 6),
    num_kv_blocks=st.integers(7, 20),
    preempt_at_steps=st.frozensets(st.integers(0, 60), max_size=12),
    abort_every=st.sampled_from([0, 2, 3]),
)
def test_requests_of_any_n_end_right(requests, abort_every, preempt_at_steps, budget, **options):
    harness = Harness(
        FaultInjection(preempt_at_steps=preempt_at_steps),
        enable_prefix_caching=True,
        max_num_batched_tokens=budget,
        **options,
    )
    kept = {}
    for number, (n, length, max_tokens, steps) in enumerate(requests, start=1):
        prompt, params = prompt_of(length, seed=7), sampled(n, max_tokens)
        request_id = harness.add(prompt, params)
        for _ in range(steps):
            harness.step()
        if abort_every and number % abort_every == 0:
            harness.engine.abort_request(request_id)
        else:
            kept[request_id] = (prompt, params)
    harness.run()
    for request_id, (prompt, params) in kept.items():
        assert_same(harness.outputs[request_id], solo(prompt, params))
