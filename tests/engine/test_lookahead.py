"""Admission looks ahead: who would soon be preempted is not let in."""

from hypothesis import given
from hypothesis import strategies as st

from pyengine.engine.lookahead import Growth, peak_growth
from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def test_two_sequences_need_the_most_when_the_first_one_ends():
    # Blocks of 4: 8 and 6 tokens in 2 blocks each, ending after 3 and 9 steps.
    growths = [Growth(8, 2, 3), Growth(6, 2, 9)]
    assert peak_growth(growths, 1, 4) == 0
    assert peak_growth(growths, 2, 4) == 1  # the first one's ninth token is fed
    assert peak_growth(growths, 3, 4) == 1
    assert peak_growth(growths, 9, 4) == 1  # 3 + 2 blocks in the third step, then 4 in the ninth


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=6),
    st.integers(1, 70),
    st.sampled_from([1, 2, 4, 16]),
)
def test_the_peak_is_that_of_a_walk_through_the_steps(sequences, num_steps, size):
    growths = [Growth(n, blocks_for(n, size), left) for n, left in sequences]
    held_now = sum(g.num_blocks for g in growths)
    held_in_step = [
        sum(blocks_for(n + step - 1, size) for n, left in sequences if left >= step)
        for step in range(1, num_steps + 1)
    ]
    assert peak_growth(growths, num_steps, size) == max(held_in_step) - held_now


def test_a_newcomer_waits_while_it_would_soon_be_preempted():
    """Each grows to 6 blocks in a pool of 10: the second would be fed 16 tokens, and preempted
    after 6 more."""
    harness = Harness(num_kv_blocks=10)
    harness.add(prompt_of(8, seed=1), greedy(17))
    for _ in range(7):
        harness.step()
    harness.add(prompt_of(16, seed=2), greedy(9))
    harness.run()
    assert harness.num_preemptions == 0
    assert harness.fed("r1") == [16] + [1] * 8
    assert_same(harness.outputs["r0"], solo(prompt_of(8, seed=1), greedy(17)))
    assert_same(harness.outputs["r1"], solo(prompt_of(16, seed=2), greedy(9)))


def test_a_newcomer_that_ends_before_the_pool_is_full_is_admitted_at_once():
    harness = Harness(num_kv_blocks=10)
    harness.add(prompt_of(8, seed=1), greedy(17))
    for _ in range(7):
        harness.step()
    harness.add(prompt_of(16, seed=2), greedy(3))
    harness.step()
    assert [row.num_tokens for row in harness.batches[-1].rows] == [1, 16]
    harness.run()
    assert harness.num_preemptions == 0


def test_sixteen_requests_in_a_pool_for_a_third_of_them_recompute_little():
    """The preempted ones find most of what they had in the prefix cache, and are not readmitted
    only to be preempted again."""
    harness = Harness(
        enable_prefix_caching=True, num_kv_blocks=40, max_num_batched_tokens=128, max_num_seqs=16
    )
    for seed in range(16):
        harness.add(prompt_of(8, seed), greedy(17))
    harness.run()
    num_needed = 16 * (8 + 16)
    assert harness.num_preemptions <= 8
    assert harness.engine.stats().num_recomputed_tokens < num_needed / 4
    for seed in range(16):
        assert_same(harness.outputs[f"r{seed}"], solo(prompt_of(8, seed), greedy(17)))
