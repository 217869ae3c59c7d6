"""Prefixes are reused, and only when they are equal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine._loader import load_core
from pyengine.engine import FaultInjection, kv_cache
from pyengine.engine.cache_salts import CacheSalts
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


def test_the_prefix_of_a_sequence_that_waits_is_looked_up_when_it_may_have_changed(monkeypatch):
    harness = Harness(enable_prefix_caching=True, num_kv_blocks=12)
    manager, match = harness.engine._kv_cache, harness.engine._kv_cache._match_prefix
    looked_up = []

    def counting(sequence):
        looked_up.append(sequence.request_id)
        return match(sequence)

    monkeypatch.setattr(manager, "_match_prefix", counting)
    harness.add(prompt_of(20, seed=1), greedy(12))
    harness.add(prompt_of(40, seed=2), greedy(2))
    harness.run()
    assert len(harness.batches) > 12
    # Again once the first prompt's blocks might have been its own, and once they were free.
    assert looked_up == ["r0", "r1", "r1", "r1"]


def check_admissions(harness: Harness) -> None:
    """From now on, a sequence is admitted if and only if a look at all its blocks says so."""
    manager, admit = harness.engine._kv_cache, harness.engine._kv_cache.admit

    def checked(sequence, *, num_spare_blocks):
        prefix, num_unheld, _ = manager._match_prefix(sequence)
        num_needed = manager.num_blocks_for(sequence.num_tokens) - len(prefix) + num_unheld
        fits = num_needed + num_spare_blocks <= manager.num_free_blocks
        assert admit(sequence, num_spare_blocks=num_spare_blocks) == fits
        return fits

    manager.admit = checked


def test_a_refusal_is_forgotten_when_another_sequence_takes_the_prefix_into_use():
    harness = Harness(enable_prefix_caching=True, num_kv_blocks=12)
    check_admissions(harness)
    prefix = prompt_of(16, seed=1)
    harness.add(prefix, greedy(1))
    harness.run()
    harness.add(prompt_of(20, seed=2), greedy(4))
    harness.step()
    # Of the 7 free blocks it would need 8: 4 new ones, and those of the prefix, which nobody holds.
    harness.add([*prefix, *prompt_of(16, seed=3)], greedy(1))
    harness.step()
    harness.add([*prefix, 1], greedy(20), priority=-1)
    harness.step()
    assert [s.request_id for s in harness.engine._scheduler.running] == ["r3", "r1"]
    harness.run()
    assert harness.fed("r2") == [16]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_refusal_is_remembered_only_while_it_holds(data):
    harness = Harness(
        enable_prefix_caching=True,
        num_kv_blocks=data.draw(st.integers(5, 14), "num_kv_blocks"),
        block_size=data.draw(st.sampled_from([1, 2, 4]), "block_size"),
        max_num_batched_tokens=data.draw(st.sampled_from([3, 16, 64]), "budget"),
    )
    check_admissions(harness)
    shared = prompt_of(12, seed=1)
    room = harness.engine.max_sequence_len
    for _ in range(data.draw(st.integers(2, 10), "num_requests")):
        prompt = shared[: data.draw(st.integers(1, min(12, room)), "shared")]
        prompt += prompt_of(data.draw(st.integers(0, min(6, room - len(prompt))), "own"), seed=2)
        max_tokens = data.draw(st.integers(1, min(12, room - len(prompt) + 1)), "max_tokens")
        priority = data.draw(st.integers(0, 1), "priority")
        request_id = harness.add(prompt, greedy(max_tokens), priority=priority)
        for _ in range(data.draw(st.integers(0, 4), "steps")):
            harness.step()
        if data.draw(st.booleans(), "abort"):
            harness.engine.abort_request(request_id)
    harness.run()


def test_prefixes_are_shared_among_equal_salts_alone():
    prompt = prompt_of(10)
    harness = Harness(enable_prefix_caching=True, num_kv_blocks=64)
    salts = [None, "a", "b", "a", None, "", "b"]
    for salt in salts:
        harness.add(prompt, greedy(6), cache_salt=salt)
        harness.run()
    cached = [output.num_cached_tokens for output in harness.outputs.values()]
    assert cached == [0, 0, 0, 8, 8, 0, 8]
    for k in range(len(salts)):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, greedy(6)))


def test_a_preempted_request_finds_its_own_blocks_under_its_salt():
    harness = Harness(FaultInjection(preempt_at_steps=frozenset({6})), enable_prefix_caching=True)
    harness.add(prompt_of(10), greedy(12), cache_salt="a")
    harness.run()
    assert harness.num_preemptions == 1
    assert harness.fed("r0")[6] < 16
    assert_same(harness.outputs["r0"], solo(prompt_of(10), greedy(12)))


def test_salts_that_are_forgotten_get_new_roots():
    salts = CacheSalts(max_salts=2)
    a, b = salts.root("a"), salts.root("b")
    assert salts.root("a") == a
    c = salts.root("c")  # b was used less recently than a
    assert salts.root("a") == a
    assert len({salts.root(None), a, b, c, salts.root("b")}) == 5
