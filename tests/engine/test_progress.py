"""The queue always moves, and what can't be served is refused at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.engine import FaultInjection
from pyengine.engine.scheduler import split_budget
from pyengine.engine.sequence import SequenceStatus
from pyengine.errors import InvalidRequestError
from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo


def test_a_request_that_can_never_fit_is_refused_and_the_next_one_served():
    harness = Harness()
    with pytest.raises(InvalidRequestError, match=r"at most 13, got 30.* length is 32 ") as caught:
        harness.add(prompt_of(20), greedy(30))
    assert caught.value.param == "max_tokens"
    assert not harness.engine.has_unfinished
    harness.add(prompt_of(5), greedy(4))
    harness.run()
    assert_same(harness.outputs["r0"], solo(prompt_of(5), greedy(4)))


def test_a_prompt_that_can_never_fit_names_the_prompt():
    with pytest.raises(
        InvalidRequestError, match=r"length is 32 tokens, but the prompt has 33"
    ) as caught:
        Harness().add(prompt_of(33), greedy(1))
    assert caught.value.param == "prompt"


def test_the_last_slot_of_the_pool_can_be_used():
    harness = Harness()
    harness.add(prompt_of(20), greedy(13))
    harness.run()
    assert_same(harness.outputs["r0"], solo(prompt_of(20), greedy(13)))


def test_without_max_tokens_a_request_runs_until_the_pool_ends():
    harness = Harness()
    harness.add(prompt_of(20), greedy(None))
    [output] = harness.run()["r0"].outputs
    assert len(output.token_ids) == 13
    assert output.finish_reason == "length"


def test_ids_outside_the_vocabulary_are_refused_by_name():
    harness = Harness()
    with pytest.raises(InvalidRequestError, match="prompt holds the token id 272") as caught:
        harness.add([1, 272], greedy(1))
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequestError, match="ids 0 to 271") as caught:
        harness.add([1], greedy(1, stop_token_ids=[-1]))
    assert caught.value.param == "stop_token_ids"


def test_a_victim_resumes_in_chunks_beside_decodes_in_a_bounded_number_of_steps():
    prompts = [prompt_of(n, seed=n) for n in (5, 6, 10)]
    harness = Harness(
        FaultInjection(preempt_at_steps=frozenset({12})),
        max_num_batched_tokens=8,
        num_kv_blocks=64,
    )
    for prompt in prompts:
        harness.add(prompt, greedy(40))
    harness.run(max_steps=100)
    [victim] = harness.sequences["r2"]
    resume_steps = [
        batch
        for batch in harness.batches[13:]
        for row in batch.rows
        if row.sequence is victim and row.num_tokens > 1
    ]
    assert len(resume_steps) <= 4
    for batch in resume_steps:
        assert len(batch.rows) == 3
    for k, prompt in enumerate(prompts):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, greedy(40)))


def test_two_long_prompts_in_small_chunks_do_not_wait_for_each_other():
    harness = Harness(max_num_batched_tokens=4)
    prompts = [prompt_of(20, seed=k) for k in range(2)]
    for prompt in prompts:
        harness.add(prompt, greedy(8))
    harness.run(max_steps=100)
    for k, prompt in enumerate(prompts):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, greedy(8)))


def test_a_preempted_request_is_admitted_before_any_later_arrival():
    harness = Harness()
    harness.add(prompt_of(10, seed=1))
    harness.add(prompt_of(10, seed=2))
    [victim] = harness.sequences["r1"]
    while victim.status is not SequenceStatus.PREEMPTED:
        harness.step()
    num_late = 0
    while victim.status is SequenceStatus.PREEMPTED:
        assert [r.sequence.request_id for r in harness.batches[-1].rows] == ["r0"]
        harness.add(prompt_of(2), greedy(1))
        num_late += 1
        harness.step()
    assert num_late > 1
    harness.run()
    assert_same(harness.outputs["r1"], solo(prompt_of(10, seed=2)))


def test_a_preempted_request_is_admitted_before_those_that_waited_already():
    harness = Harness()
    harness.add(prompt_of(10, seed=1))
    harness.add(prompt_of(10, seed=2))
    harness.step()
    for seed in range(3, 6):
        harness.add(prompt_of(8, seed), greedy(3))
    [victim] = harness.sequences["r1"]
    while victim.status is not SequenceStatus.PREEMPTED:
        harness.step()
    waiting = harness.engine._scheduler.waiting
    assert [sequence.request_id for sequence in waiting] == ["r1", "r2", "r3", "r4"]
    while victim.status is SequenceStatus.PREEMPTED:
        assert [r.sequence.request_id for r in harness.batches[-1].rows] == ["r0"]
        harness.step()
    harness.run()
    assert_same(harness.outputs["r1"], solo(prompt_of(10, seed=2)))


def test_a_low_priority_row_gives_way_and_a_high_priority_newcomer_runs_first():
    harness = Harness()
    harness.add(prompt_of(10, seed=1), priority=1)
    harness.step()
    harness.add(prompt_of(10, seed=2), priority=0)
    harness.add(prompt_of(10, seed=3), priority=2)
    harness.run()
    # The request that came first is the one to give way to the one that matters more.
    assert harness.sequences["r0"][0].clock.num_preemptions >= 1
    assert harness.sequences["r1"][0].clock.num_preemptions == 0
    for batch in harness.batches:
        scheduled = [row.sequence.sequence_id for row in batch.rows]
        assert not set(scheduled) & (set(batch.preempted_sequence_ids))
        assert batch.num_tokens <= 32
    for k in range(3):
        assert_same(harness.outputs[f"r{k}"], solo(prompt_of(10, seed=k + 1)))


def test_those_that_matter_more_are_admitted_first_and_the_others_in_order_of_arrival():
    harness = Harness(max_num_seqs=1)
    priorities = [0, 2, 1, 1, -3, 2]
    for k, priority in enumerate(priorities):
        harness.add(prompt_of(4, seed=k), greedy(3), priority=priority)
    harness.run()
    first_steps = {}
    for batch in harness.batches:
        for row in batch.rows:
            first_steps.setdefault(row.sequence.sequence_id, batch.step)
    assert sorted(first_steps, key=first_steps.__getitem__) == [4, 0, 2, 3, 1, 5]


def test_a_victim_that_matters_less_waits_for_a_newcomer_that_matters_more():
    harness = Harness()
    harness.add(prompt_of(10, seed=1), priority=0)
    harness.add(prompt_of(10, seed=2), priority=1)
    [victim] = harness.sequences["r1"]
    while victim.status is not SequenceStatus.PREEMPTED:
        harness.step()
    harness.add(prompt_of(10, seed=3), priority=0)
    harness.add(prompt_of(10, seed=4), priority=1)
    waiting = harness.engine._scheduler.waiting
    assert [sequence.request_id for sequence in waiting] == ["r2", "r1", "r3"]
    harness.run()
    for k in range(4):
        assert_same(harness.outputs[f"r{k}"], solo(prompt_of(10, seed=k + 1)))


@pytest.mark.parametrize("failing", range(12))
def test_any_allocation_may_fail(failing):
    harness = Harness(FaultInjection(fail_allocations=frozenset({failing})))
    harness.add(prompt_of(10, seed=1))
    harness.add(prompt_of(10, seed=2))
    harness.run()
    for k in range(2):
        assert_same(harness.outputs[f"r{k}"], solo(prompt_of(10, seed=k + 1)))


def test_the_oldest_is_not_preempted_even_when_its_allocation_fails():
    harness = Harness(FaultInjection(fail_allocations=frozenset({1})))
    harness.add(prompt_of(4))
    harness.run()
    assert harness.num_preemptions == 0
    assert [len(batch.rows) for batch in harness.batches].count(0) == 1
    assert_same(harness.outputs["r0"], solo(prompt_of(4)))


def test_filling_the_pool_twice_gives_the_same():
    harness = Harness(enable_prefix_caching=True)
    for _ in range(2):
        for seed in range(4):
            harness.add(prompt_of(7, seed), greedy(10))
        harness.run()
    for k in range(8):
        assert_same(harness.outputs[f"r{k}"], solo(prompt_of(7, k % 4), greedy(10)))


def test_a_full_pool_with_every_sequence_at_a_block_edge_preempts_one():
    harness = Harness()
    for seed in range(2):
        harness.add(prompt_of(8, seed), greedy(12))
    while harness.engine.stats().num_used_blocks < 8:
        harness.step()
    harness.run()
    [preempting] = [batch for batch in harness.batches if batch.preempted_sequence_ids]
    assert preempting.preempted_sequence_ids == [1]
    for k in range(2):
        assert_same(harness.outputs[f"r{k}"], solo(prompt_of(8, k), greedy(12)))


@given(st.lists(st.integers(0, 50)), st.integers(0, 100))
def test_a_budget_is_shared_first_come_first_served(needs, budget):
    shares = split_budget(needs, budget)
    assert sum(shares) == min(budget, sum(needs))
    for k, (share, need) in enumerate(zip(shares, needs, strict=True)):
        assert share == min(need, budget - sum(shares[:k]))


def step_in_which_the_oldest_moves(harness: Harness) -> None:
    """A step that computes something of the first of the running sequences (the oldest of those
    that matter most), or of one that waits if none runs: neither it nor the queue is ever stuck.
    Those that are preempted are the last of the running ones."""
    running = harness.engine._scheduler.running
    oldest = running[0] if running else None
    computed = oldest and oldest.num_computed_tokens
    was_waiting = bool(harness.engine._scheduler.waiting)
    orders = {s.sequence_id: s.order for s in running}
    harness.step()
    victims = [orders[k] for k in harness.batches[-1].preempted_sequence_ids]
    assert victims == sorted(orders.values(), reverse=True)[: len(victims)]
    for queue in (harness.engine._scheduler.running, harness.engine._scheduler.waiting):
        assert [s.order for s in queue] == sorted(s.order for s in queue)
    if oldest is not None:
        assert oldest.status is SequenceStatus.FINISHED or oldest.num_computed_tokens > computed
    elif was_waiting:
        assert harness.batches[-1].rows


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_traffic_always_ends_right(data):
    """Arrivals, priorities, aborts, budgets and pools at random: no leak, no wedge, all answers
    right."""
    harness = Harness(
        num_kv_blocks=data.draw(st.integers(4, 16), "num_kv_blocks"),
        block_size=data.draw(st.sampled_from([1, 2, 4, 8]), "block_size"),
        max_num_batched_tokens=data.draw(st.sampled_from([1, 2, 3, 5, 7, 16, 64]), "budget"),
        max_num_seqs=data.draw(st.integers(1, 6), "max_num_seqs"),
        enable_prefix_caching=data.draw(st.booleans(), "enable_prefix_caching"),
    )
    room = harness.engine.max_sequence_len
    kept = {}
    for _ in range(data.draw(st.integers(1, 8), "num_requests")):
        length = data.draw(st.integers(1, min(12, room)), "prompt length")
        max_tokens = data.draw(st.integers(1, min(12, room - length + 1)), "max_tokens")
        prompt = prompt_of(length, data.draw(st.integers(0, 1), "prompt seed"))
        priority = data.draw(st.sampled_from([0, 0, -1, 1]), "priority")
        request_id = harness.add(prompt, greedy(max_tokens), priority=priority)
        kept[request_id] = (prompt, max_tokens)
        for _ in range(data.draw(st.integers(0, 4), "steps")):
            step_in_which_the_oldest_moves(harness)
        if data.draw(st.booleans(), "abort"):
            victim = data.draw(st.sampled_from(sorted(kept)), "victim")
            harness.engine.abort_request(victim)
            del kept[victim]
    while harness.engine.has_unfinished:
        step_in_which_the_oldest_moves(harness)
    harness.check_nothing_left()
    for request_id, (prompt, max_tokens) in kept.items():
        assert_same(harness.outputs[request_id], solo(prompt, greedy(max_tokens)))


@pytest.mark.parametrize("budget", [1, 32])
@pytest.mark.parametrize("max_draft_tokens", [0, 4])
def test_a_prompt_that_is_only_scored_ends_with_its_last_token(budget, max_draft_tokens):
    harness = Harness(max_num_batched_tokens=budget, max_draft_tokens=max_draft_tokens)
    # One to guess from, one as long as the pool.
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2], prompt_of(32)]
    for prompt in prompts:
        harness.add(prompt, greedy(0, prompt_logprobs=2))
    harness.run()
    for k, prompt in enumerate(prompts):
        [output] = harness.outputs[f"r{k}"].outputs
        assert (output.token_ids, output.text, output.finish_reason) == ([], "", "length")
        expected = solo(prompt, greedy(1, prompt_logprobs=2)).prompt_logprobs
        assert harness.outputs[f"r{k}"].prompt_logprobs == expected
    assert harness.engine.stats().num_generated_tokens == 0
