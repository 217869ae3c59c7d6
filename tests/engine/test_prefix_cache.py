"""Prefixes are reused, and only when they are equal."""

import pytest

from pyengine._loader import load_core
from pyengine.engine import FaultInjection, kv_cache
from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo


def test_a_shared_prefix_is_computed_once():
    shared = prompt_of(12, seed=1)
    harness = Harness(enable_prefix_caching=True, num_kv_blocks=16)
    harness.add([*shared, 1, 2], greedy(4))
    harness.run()
    harness.add([*shared, 3], greedy(4))
    harness.run()
    assert harness.fed("r1")[0] == 1
    assert harness.outputs["r1"].num_cached_tokens == 12
    assert_same(harness.outputs["r1"], solo([*shared, 3], greedy(4)))


def test_generated_tokens_are_reused_by_a_conversation_that_goes_on():
    prompt = prompt_of(6)
    harness = Harness(enable_prefix_caching=True)
    harness.add(prompt, greedy(7))
    harness.run()
    turn = [*prompt, *harness.outputs["r0"].outputs[0].token_ids, 1]
    harness.add(turn, greedy(4))
    harness.run()
    assert harness.outputs["r1"].num_cached_tokens == 12
    assert_same(harness.outputs["r1"], solo(turn, greedy(4)))


def test_colliding_hashes_do_no_harm(monkeypatch):
    core = load_core()

    class AllCollide:
        @staticmethod
        def BlockAllocator(num_blocks: int, block_size: int):
            return core.BlockAllocator(num_blocks, block_size, hash_mask=0)

    monkeypatch.setattr(kv_cache, "load_core", lambda: AllCollide)
    harness = Harness(enable_prefix_caching=True, num_kv_blocks=32)
    for seed in (1, 2, 1, 3, 2):
        harness.add(prompt_of(10, seed), greedy(6))
        harness.run()
    assert [o.num_cached_tokens for o in harness.outputs.values()] == [0, 0, 8, 0, 8]
    for k, seed in enumerate((1, 2, 1, 3, 2)):
        assert_same(harness.outputs[f"r{k}"], solo(prompt_of(10, seed), greedy(6)))


def test_blocks_that_a_resume_finds_of_its_own_are_no_cache_hit():
    harness = Harness(FaultInjection(preempt_at_steps=frozenset({6})), enable_prefix_caching=True)
    harness.add(prompt_of(10), greedy(12))
    harness.run()
    assert harness.num_preemptions == 1
    assert harness.fed("r0")[6] < 16
    stats = harness.engine.stats()
    assert stats.num_prefix_queried_tokens == 10
    assert stats.num_cached_tokens == 0
    assert harness.outputs["r0"].num_cached_tokens == 0


def test_without_the_cache_nothing_is_reused():
    harness = Harness(enable_prefix_caching=False)
    for _ in range(2):
        harness.add(prompt_of(9), greedy(2))
        harness.run()
    assert harness.fed("r1")[0] == 9


@pytest.mark.parametrize("num_cached", [4, 8])
def test_prompt_logprobs_are_computed_though_the_prefix_is_cached(num_cached):
    prompt = prompt_of(num_cached + 1)
    params = greedy(2, prompt_logprobs=1)
    harness = Harness(enable_prefix_caching=True)
    harness.add(prompt, greedy(2))
    harness.run()
    harness.add(prompt, params)
    harness.run()
    assert harness.outputs["r1"].num_cached_tokens == 0
    assert_same(harness.outputs["r1"], solo(prompt, params))


def test_evicted_blocks_are_computed_again():
    harness = Harness(enable_prefix_caching=True)
    harness.add(prompt_of(8, seed=1), greedy(2))
    harness.run()
    harness.add(prompt_of(28, seed=2), greedy(2))
    harness.run()
    harness.add(prompt_of(8, seed=1), greedy(2))
    harness.run()
    assert harness.outputs["r2"].num_cached_tokens == 0
    assert_same(harness.outputs["r2"], solo(prompt_of(8, seed=1), greedy(2)))
