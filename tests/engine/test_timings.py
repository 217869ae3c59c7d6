"""Timings say where the time went."""

from pyengine.engine import FaultInjection
from pyengine.engine.timings import SequenceClock
from tests.engine.harness import Harness, greedy, prompt_of

MS = 1_000_000


def test_a_clock_sums_up_a_run_with_a_preemption():
    clock = SequenceClock(start_ns=10 * MS)
    clock.on_scheduled(12 * MS)
    clock.on_token(15 * MS)
    clock.on_token(16 * MS)
    clock.on_preempted(20 * MS)
    clock.on_scheduled(26 * MS)
    clock.on_token(30 * MS)
    clock.on_finished(35 * MS)
    timings = clock.summary(num_output_tokens=3)
    assert timings.queue_wait_ms == 2
    assert timings.time_to_first_token_ms == 5
    assert timings.execution_ms == 23
    assert timings.total_ms == 25
    assert timings.decode_tokens_per_s == 2 / 0.020
    assert timings.num_preemptions == 1
    assert timings.stalled_ms == 6


def test_a_sequence_that_never_ran_only_waited():
    clock = SequenceClock(start_ns=0)
    clock.on_finished(7 * MS)
    timings = clock.summary(num_output_tokens=0)
    assert (timings.queue_wait_ms, timings.execution_ms, timings.total_ms) == (7, 0, 7)
    assert timings.time_to_first_token_ms is None
    assert timings.decode_tokens_per_s is None


def test_a_sequence_that_ended_while_preempted_was_stalled_until_then():
    clock = SequenceClock(start_ns=0)
    clock.on_scheduled(0)
    clock.on_preempted(2 * MS)
    clock.on_finished(5 * MS)
    assert clock.summary(num_output_tokens=0).stalled_ms == 3


def test_the_parts_of_a_contended_run_add_up():
    harness = Harness(FaultInjection(preempt_at_steps=frozenset({4})), max_num_seqs=2)
    for seed in range(3):
        harness.add(prompt_of(6, seed), greedy(8))
    harness.run()
    for output in harness.outputs.values():
        timings = output.outputs[0].timings
        assert timings.total_ms == timings.queue_wait_ms + timings.execution_ms
        assert 0 <= timings.queue_wait_ms <= timings.time_to_first_token_ms <= timings.total_ms
        assert timings.stalled_ms <= timings.execution_ms
    preempted = [o for o in harness.outputs.values() if o.outputs[0].timings.num_preemptions]
    assert len(preempted) == 1
    assert preempted[0].outputs[0].timings.stalled_ms > 0
    stats = harness.engine.stats()
    assert stats.num_prompt_tokens == 18
    assert stats.num_generated_tokens == 24
    assert stats.num_recomputed_tokens == sum(
        o.outputs[0].timings.num_recomputed_tokens for o in harness.outputs.values()
    )
