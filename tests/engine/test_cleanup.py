"""Blocks and per-request state are freed exactly once, whatever ends a request."""

import itertools

import pytest

from pyengine.engine import FaultInjection
from pyengine.errors import StepFailedError
from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo


def test_a_thousand_short_requests_leave_all_blocks_free():
    harness = Harness(enable_prefix_caching=True)
    for seed in range(1000):
        harness.add(prompt_of(1 + seed % 7, seed), greedy(1 + seed % 3))
    harness.run()
    assert harness.engine.stats().num_accepted_requests == 1000


@pytest.mark.parametrize("order", list(itertools.permutations(["finish", "abort", "preempt"])))
def test_finish_abort_and_preempt_of_one_request_free_it_once(order):
    harness = Harness()
    harness.add(prompt_of(6))
    harness.step()
    [sequence] = harness.sequences["r0"]
    scheduler = harness.engine._scheduler
    for event in order:
        if event == "finish":
            scheduler.finish(sequence, 0)
            harness.engine._open.pop("r0", None)
        elif event == "abort":
            harness.engine.abort_request("r0")
        elif sequence in scheduler.running:
            scheduler._preempt(sequence, harness.batches[-1], 0)
    harness.check_nothing_left()


@pytest.mark.parametrize("stage", ["inputs", "forward", "sample", "outputs"])
def test_a_step_that_throws_fails_its_requests_and_no_others(stage):
    failing_step = 2

    def throw(at_stage: str, step: int) -> None:
        if (at_stage, step) == (stage, failing_step):
            raise ZeroDivisionError("injected")

    harness = Harness(FaultInjection(before_stage=throw), enable_prefix_caching=True)
    harness.add(prompt_of(6, seed=1))
    harness.add(prompt_of(6, seed=2))
    harness.step()
    harness.step()
    updates = harness.engine.step()
    assert {u.request_id for u in updates} == {"r0", "r1"}
    for update in updates:
        assert update.finished
        [delta] = update.deltas
        assert delta.finish_reason == "error"
        assert isinstance(delta.error, StepFailedError)
        assert "injected" in str(delta.error)
    harness.check_nothing_left()
    harness.add(prompt_of(6, seed=1))
    harness.run()
    assert_same(harness.outputs["r2"], solo(prompt_of(6, seed=1)))


def test_a_request_that_was_not_in_the_failing_step_goes_on():
    def throw(stage: str, step: int) -> None:
        if (stage, step) == ("forward", 0):
            raise ZeroDivisionError("injected")

    harness = Harness(FaultInjection(before_stage=throw), max_num_seqs=1)
    harness.add(prompt_of(6, seed=1))
    harness.add(prompt_of(6, seed=2))
    [update] = harness.engine.step()
    assert update.request_id == "r0"
    harness.run()
    assert_same(harness.outputs["r1"], solo(prompt_of(6, seed=2)))


def test_all_sequences_of_a_request_end_when_the_step_of_one_fails():
    def throw(stage: str, step: int) -> None:
        if (stage, step) == ("outputs", 1):
            raise ZeroDivisionError("injected")

    harness = Harness(FaultInjection(before_stage=throw))
    harness.add(prompt_of(4), greedy(4, n=2))
    harness.step()
    [update] = harness.engine.step()
    assert sorted(delta.index for delta in update.deltas) == [0, 1]
    harness.check_nothing_left()


def test_aborting_an_unknown_request_does_nothing():
    harness = Harness()
    harness.engine.abort_request("nobody")
    assert harness.engine.stats().num_aborted_requests == 0


def test_a_second_request_of_the_same_id_is_refused_and_the_first_goes_on():
    harness = Harness()
    harness.add(prompt_of(4), greedy(3))
    twin = harness.engine.new_request("r0", prompt_of(5), greedy(3))
    with pytest.raises(ValueError, match="'r0' is already open"):
        harness.engine.add_request(twin)
    harness.run()
    assert_same(harness.outputs["r0"], solo(prompt_of(4), greedy(3)))
