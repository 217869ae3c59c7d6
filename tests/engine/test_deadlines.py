"""Requests end when their time is up, wherever they are, and leave nothing behind."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.engine.deadlines import Deadlines
from pyengine.engine.sequence import SequenceStatus
from pyengine.errors import RequestTimeoutError
from tests.engine.clock import Clock
from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("stage", ["queued", "mid-prefill", "decode", "preempted"])
def test_a_request_ends_at_its_deadline_wherever_it_is(clock, stage):
    harness = Harness(
        max_num_batched_tokens=4 if stage == "mid-prefill" else 32,
        max_num_seqs=1 if stage == "queued" else 4,
        enable_prefix_caching=True,
    )
    harness.add(prompt_of(10, 1))
    late = harness.add(prompt_of(10, 2), timeout_s=60)
    [sequence] = harness.sequences[late]
    for _ in range(3):
        harness.step()
    while stage == "preempted" and sequence.status is not SequenceStatus.PREEMPTED:
        harness.step()
    expected = {"queued": SequenceStatus.WAITING, "preempted": SequenceStatus.PREEMPTED}
    assert sequence.status is expected.get(stage, SequenceStatus.RUNNING)
    clock.jump(61)
    harness.step()
    assert harness.timed_out == [late]
    assert sequence.status is SequenceStatus.FINISHED
    stats = harness.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_timed_out_requests) == (1, 0, 1)
    harness.run()
    assert_same(harness.outputs["r0"], solo(prompt_of(10, 1)))


def test_all_sequences_of_the_request_end_with_the_same_error(clock):
    harness = Harness()
    request = harness.engine.new_request("r", prompt_of(4), greedy(9, n=3), timeout_s=1)
    harness.engine.add_request(request)
    harness.engine.step()
    clock.jump(1)
    [update] = harness.engine.step()
    assert update.finished
    assert [delta.finish_reason for delta in update.deltas] == ["error"] * 3
    assert all(isinstance(delta.error, RequestTimeoutError) for delta in update.deltas)
    harness.check_nothing_left()


def test_a_request_that_finishes_or_is_aborted_in_time_does_not_time_out(clock):
    harness = Harness()
    harness.add(prompt_of(4), greedy(2), timeout_s=60)
    harness.add(prompt_of(5), greedy(9), timeout_s=60)
    harness.step()
    harness.step()
    harness.engine.abort_request("r1")
    clock.jump(61)
    harness.add(prompt_of(6), greedy(2))
    harness.run()
    assert harness.timed_out == []
    assert_same(harness.outputs["r0"], solo(prompt_of(4), greedy(2)))


@given(st.data())
def test_deadlines_pass_in_order_and_are_forgotten(data):
    deadlines, expected = Deadlines(), {}
    for k in range(data.draw(st.integers(0, 12))):
        expected[f"r{k}"] = data.draw(st.integers(0, 5))
        deadlines.add(f"r{k}", expected[f"r{k}"])
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from([*expected, "never there"]))
            deadlines.discard(gone)
            expected.pop(gone, None)
    for now in range(6):
        due = sorted((at, request) for request, at in expected.items() if at <= now)
        assert deadlines.passed(now) == [request for _, request in due]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_traffic_with_deadlines_leaves_nothing_behind(data):
    """Whoever isn't told of a timeout gets the right answer."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(monkeypatch)
        harness = Harness(
            num_kv_blocks=data.draw(st.integers(6, 12), "num_kv_blocks"),
            max_num_batched_tokens=data.draw(st.sampled_from([3, 8, 64]), "budget"),
            enable_prefix_caching=data.draw(st.booleans(), "enable_prefix_caching"),
        )
        for seed in range(data.draw(st.integers(1, 8), "num_requests")):
            timeout_s = data.draw(st.sampled_from([None, 1000.0, 3000.0]), "timeout_s")
            params = greedy(data.draw(st.integers(1, 12), "max_tokens"))
            harness.add(prompt_of(5, seed), params, timeout_s=timeout_s)
            for _ in range(data.draw(st.integers(0, 4), "steps")):
                harness.step()
            if data.draw(st.booleans(), "time passes"):
                clock.jump(1500)
        harness.run()
    for request_id, [sequence] in harness.sequences.items():
        if request_id in harness.timed_out:
            assert harness.outputs[request_id].outputs[0].finish_reason is None
        else:
            prompt = harness.outputs[request_id].prompt_token_ids
            assert_same(harness.outputs[request_id], solo(prompt, sequence.params))
