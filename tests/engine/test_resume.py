"""A preempted request is recomputed, and its client can't tell."""

import dataclasses

import pytest

from pyengine.engine import FaultInjection
from pyengine.engine.sequence import Sequence, SequenceStatus
from pyengine.sampling_params import SamplingParams
from tests.engine.harness import GREEDY, Harness, assert_same, greedy, prompt_of, solo
from tests.tiny import tiny_model

FIRST, SECOND = prompt_of(10, seed=1), prompt_of(10, seed=2)


def run_contended(params: SamplingParams = GREEDY, **options) -> Harness:
    """Two requests of 10 + 12 tokens in 8 blocks: one has to give way."""
    harness = Harness(**options)
    harness.add(FIRST, params)
    harness.add(SECOND, params)
    harness.run()
    return harness


def run_until_preempted() -> tuple[Harness, Sequence]:
    """The same two, up to the step in which the second lost its blocks; and its sequence."""
    harness = Harness()
    harness.add(FIRST)
    harness.add(SECOND)
    [victim] = harness.sequences["r1"]
    while victim.status is not SequenceStatus.PREEMPTED:
        harness.step()
    return harness, victim


def assert_both_same(harness: Harness, params: SamplingParams) -> None:
    assert harness.num_preemptions >= 1
    assert_same(harness.outputs["r0"], solo(FIRST, params))
    assert_same(harness.outputs["r1"], solo(SECOND, params))


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_two_requests_that_contend_get_what_each_gets_alone(enable_prefix_caching):
    harness = run_contended(enable_prefix_caching=enable_prefix_caching)
    assert_both_same(harness, GREEDY)


def test_the_younger_is_preempted_with_seven_generated_tokens_and_fed_seventeen():
    harness = run_contended()
    [preempting] = [b for b in harness.batches if b.preempted_sequence_ids]
    assert preempting.preempted_sequence_ids == [1]
    assert harness.fed("r0") == [10] + [1] * 11
    assert harness.fed("r1") == [10] + [1] * 6 + [17] + [1] * 4
    resuming = [b for b in harness.batches if b.resumed_sequence_ids]
    assert [b.resumed_sequence_ids for b in resuming] == [{1}]
    [row] = [r for r in resuming[0].rows if r.sequence.sequence_id == 1]
    assert (row.first_position, row.num_tokens, row.is_sampled) == (0, 17, True)


def test_a_resume_touches_no_stamp_no_prompt_count_and_no_emitted_text():
    harness, victim = run_until_preempted()
    output, counted = harness.outputs["r1"].outputs[0], harness.engine.stats().num_prompt_tokens
    text, token_ids = output.text, list(output.token_ids)
    before = dataclasses.replace(victim.clock)
    assert victim.num_computed_tokens == 0
    assert victim.block_table == []
    assert victim.num_output_tokens == len(token_ids) == 7
    harness.run()
    after = victim.clock
    assert after.start_ns == before.start_ns
    assert after.first_scheduled_ns == before.first_scheduled_ns
    assert after.first_token_ns == before.first_token_ns
    assert after.num_preemptions == 1
    assert after.num_recomputed_tokens == 16
    assert after.stalled_ns > 0
    assert victim.num_prompt_tokens == 10
    assert harness.engine.stats().num_prompt_tokens == counted == 20
    assert output.text.startswith(text)
    assert output.token_ids[:7] == token_ids


def test_a_resume_in_chunks_samples_only_at_the_end_of_prompt_and_generated_tokens():
    harness, victim = run_until_preempted()
    harness.engine._scheduler._max_num_batched_tokens = 4
    harness.run()
    assert harness.fed("r1") == [10] + [1] * 6 + [4, 4, 4, 4, 1] + [1] * 4
    resume = [r for b in harness.batches for r in b.rows if r.sequence is victim][7:12]
    # Three of these ends lie beyond the prompt's: it is no prefill, and yet nothing is sampled.
    assert [r.first_position + r.num_tokens for r in resume] == [4, 8, 12, 16, 17]
    assert [r.is_sampled for r in resume] == [False, False, False, False, True]
    assert_both_same(harness, GREEDY)


def test_two_requests_that_contend_in_small_chunks_get_what_each_gets_alone():
    assert_both_same(run_contended(max_num_batched_tokens=4), GREEDY)


@pytest.mark.parametrize("length", [7, 8, 9, 11, 12, 13, 15, 16, 17])
def test_any_length_at_preemption_resumes(length):
    prompt = prompt_of(6)
    # A step for the prompt, then one a token: the sequence has `length` tokens at step length - 6.
    harness = Harness(FaultInjection(preempt_at_steps=frozenset({length - 6})))
    harness.add(prompt, greedy(16))
    [sequence] = harness.sequences["r0"]
    while not harness.num_preemptions:
        harness.step()
    assert sequence.num_tokens == length
    harness.step()
    assert harness.fed("r0")[-1] == length
    assert len(sequence.block_table) == -(-length // 4)
    harness.run()
    assert_same(harness.outputs["r0"], solo(prompt, greedy(16)))


def test_four_requests_in_a_pool_for_one_and_a_half_finish_without_thrashing():
    harness = Harness()
    prompts = [prompt_of(6, seed) for seed in range(4)]
    for prompt in prompts:
        harness.add(prompt, greedy(16))
    harness.run()
    assert harness.num_preemptions >= 1
    num_fed = sum(batch.num_tokens for batch in harness.batches)
    assert num_fed <= 3 * 4 * (6 + 15)
    for k, prompt in enumerate(prompts):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, greedy(16)))
        assert harness.sequences[f"r{k}"][0].clock.num_preemptions <= 4


def test_a_seeded_request_preempted_in_mid_prefill_draws_the_same_tokens():
    params = SamplingParams(temperature=1, seed=7, max_tokens=10)
    older, younger = prompt_of(15, seed=1), prompt_of(20, seed=2)
    harness = Harness(
        FaultInjection(preempt_at_steps=frozenset({7})), max_num_batched_tokens=4, num_kv_blocks=20
    )
    harness.add(older, greedy(20))
    harness.add(younger, params)
    [victim] = harness.sequences["r1"]
    for _ in range(8):
        harness.step()
    assert harness.batches[7].preempted_sequence_ids == [victim.sequence_id]
    assert 0 < victim.max_computed_tokens < 20
    assert victim.num_output_tokens == 0
    harness.run()
    assert_same(harness.outputs["r0"], solo(older, greedy(20)))
    assert_same(harness.outputs["r1"], solo(younger, params))


@pytest.mark.parametrize(("step", "resume"), [(4, (8, 4)), (5, (12, 1))])
def test_a_resume_that_the_prefix_cache_covers_still_feeds_a_token(step, resume):
    """Preempted with 12 or 13 tokens, and nobody takes the blocks."""
    prompt = prompt_of(8)
    harness = Harness(
        FaultInjection(preempt_at_steps=frozenset({step})), enable_prefix_caching=True
    )
    harness.add(prompt, GREEDY)
    harness.run()
    [row] = harness.batches[step + 1].rows
    assert (row.first_position, row.num_tokens, row.is_sampled) == (*resume, True)
    assert_same(harness.outputs["r0"], solo(prompt, greedy(12)))


def test_a_resume_may_find_none_of_the_prefix_that_its_first_admission_found():
    shared = prompt_of(8, seed=9)
    harness = Harness(enable_prefix_caching=True)
    harness.add([*shared, 1], greedy(1))
    harness.run()
    prompt = [*shared, 2, 3]
    harness.add(prompt, GREEDY)
    harness.step()
    [sequence] = harness.sequences["r1"]
    assert sequence.num_cached_tokens == 8
    harness.engine._scheduler._preempt(sequence, harness.batches[-1], 0)
    harness.engine.clear_prefix_cache()
    harness.run()
    assert harness.fed("r1")[1] == 11
    assert_same(harness.outputs["r1"], solo(prompt, greedy(12)))


def test_one_step_mixes_a_resume_a_prefill_a_middle_chunk_and_two_decodes():
    harness = Harness(num_kv_blocks=64, max_num_batched_tokens=64)
    prompts = [prompt_of(n, seed=n) for n in (3, 4, 10, 5, 40)]
    for prompt in prompts[:3]:
        harness.add(prompt, greedy(16))
    for _ in range(7):
        harness.step()
    scheduler = harness.engine._scheduler
    scheduler._preempt(scheduler.running[-1], harness.batches[-1], 0)
    harness.add(prompts[3], greedy(16))
    harness.add(prompts[4], greedy(16))
    scheduler._max_num_batched_tokens = 2 + 17 + 5 + 3
    harness.step()
    rows = harness.batches[-1].rows
    assert [(r.sequence.request_id, r.num_tokens, r.is_sampled) for r in rows] == [
        ("r0", 1, True),
        ("r1", 1, True),
        ("r2", 17, True),
        ("r3", 5, True),
        ("r4", 3, False),
    ]
    harness.run()
    for k, prompt in enumerate(prompts):
        assert_same(harness.outputs[f"r{k}"], solo(prompt, greedy(16)))


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.3}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0}],
)
def test_penalties_look_at_the_same_history_after_a_resume(penalty):
    params = greedy(12, **penalty)
    assert_both_same(run_contended(params), params)


@pytest.mark.parametrize("seed", [1, 2])
def test_sampling_noise_survives_a_resume(seed):
    params = SamplingParams(temperature=1, seed=seed, max_tokens=12)
    assert_both_same(run_contended(params), params)


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 4}, {}])
def test_logprobs_of_prompt_and_output_are_complete_after_a_resume(options):
    params = greedy(12, logprobs=3, prompt_logprobs=2)
    harness = run_contended(params, **options)
    assert_both_same(harness, params)
    for output in harness.outputs.values():
        assert len(output.outputs[0].logprobs) == 12
        assert len(output.prompt_logprobs) == 10
        assert output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs[1].top_logprobs) == 2


def test_prompt_logprobs_are_complete_when_preempted_in_mid_prefill():
    prompt = prompt_of(14)
    params = SamplingParams(temperature=1, seed=7, max_tokens=4, logprobs=3, prompt_logprobs=2)
    harness = Harness(
        FaultInjection(preempt_at_steps=frozenset({2})),
        max_num_batched_tokens=4,
        enable_prefix_caching=True,
    )
    harness.add(prompt, params)
    harness.run()
    assert harness.num_preemptions == 1
    assert_same(harness.outputs["r0"], solo(prompt, params))


def test_a_stop_string_may_span_the_preemption():
    loaded = tiny_model(letters=True)
    text = solo(SECOND, greedy(12), loaded).outputs[0].text
    params = greedy(12, stop=[text[6:8]])
    assert text.find(text[6:8]) == 6
    harness = run_contended(params, loaded=loaded)
    assert harness.num_preemptions == 1
    assert harness.fed("r1")[7] == 10 + 7
    assert harness.outputs["r1"].outputs[0].text == text[:6]
    assert harness.outputs["r1"].outputs[0].finish_reason == "stop"
    assert_same(harness.outputs["r1"], solo(SECOND, params, loaded))


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_token_counts_are_exact_with_an_end_token_that_the_model_likes(max_tokens):
    likely = frozenset(solo(SECOND).outputs[0].token_ids)
    loaded = tiny_model(eos_token_ids=likely)
    params = greedy(max_tokens, min_tokens=max_tokens - 1)
    harness = run_contended(params, loaded=loaded)
    for request_id, prompt in (("r0", FIRST), ("r1", SECOND)):
        output = harness.outputs[request_id]
        assert max_tokens - 1 <= len(output.outputs[0].token_ids) <= max_tokens
        assert_same(output, solo(prompt, params, loaded))


def test_an_aborted_victim_never_runs_again():
    harness, victim = run_until_preempted()
    num_fed = len(harness.fed("r1"))
    harness.engine.abort_request("r1")
    harness.run()
    assert len(harness.fed("r1")) == num_fed
    assert victim.status is SequenceStatus.FINISHED
    assert_same(harness.outputs["r0"], solo(FIRST))


def test_a_victim_aborted_just_after_its_last_token_stays_gone():
    harness = Harness(FaultInjection(preempt_at_steps=frozenset({3})))
    harness.add(FIRST)
    for _ in range(3):
        harness.step()
    harness.step()  # preempts
    harness.engine.abort_request("r0")
    harness.run()
    assert harness.fed("r0") == [10, 1, 1]
    assert harness.engine.stats().num_aborted_requests == 1


def test_cold_cached_resumed_and_uncached_runs_agree():
    prompt = prompt_of(12)
    harness = Harness(FaultInjection(preempt_at_steps=frozenset({30})), enable_prefix_caching=True)
    for _ in range(3):
        harness.add(prompt, GREEDY)
        harness.run()
    assert harness.num_preemptions == 1
    assert harness.sequences["r0"][0].num_cached_tokens == 0
    assert harness.sequences["r1"][0].num_cached_tokens == 8
    assert harness.sequences["r2"][0].clock.num_preemptions == 1
    for output in harness.outputs.values():
        assert_same(output, solo(prompt, greedy(12)))
