"""The logits after a token depend on the tokens before it alone, to the last bit."""

import functools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.config import EngineConfig
from pyengine.engine import Engine, FaultInjection
from pyengine.engine.loading import load
from pyengine.sampling_params import SamplingParams
from pyengine.verify import (
    Case,
    LogitsObserver,
    Schedule,
    default_cases,
    default_schedules,
    reference_digests,
    run_schedule,
    verify,
)
from tests.engine.harness import prompt_of
from tests.tiny import Weights, tiny_model

DTYPES = [torch.float32, torch.bfloat16]
WEIGHTS: list[Weights] = ["float", "ggml", "int8", "int4"]
SHARED = prompt_of(9, seed=77)


@functools.cache
def cases() -> list[Case]:
    """Requests of all kinds: short, long, greedy, seeded, penalized, with common beginnings."""
    kinds = [
        {"temperature": 0},
        {"temperature": 1, "seed": 3},
        {"temperature": 0.7, "seed": 4, "top_p": 0.8, "frequency_penalty": 1.0},
        {"temperature": 0, "repetition_penalty": 1.3},
        {"temperature": 1, "seed": 5, "top_k": 20, "logprobs": 3},
        {"temperature": 0, "prompt_logprobs": 2},
    ]
    made = []
    for number in range(12):
        params = SamplingParams(max_tokens=3 + 2 * number % 13, **kinds[number % len(kinds)])
        beginning = SHARED if number % 3 == 0 else []
        made.append(Case(f"r{number}", beginning + prompt_of(1 + 5 * number % 31, number), params))
    # More keys than one partition of the attention holds.
    made.append(Case("long", prompt_of(530, 99), SamplingParams(max_tokens=5, temperature=0)))
    return made


@functools.cache
def reference(
    dtype: torch.dtype, kv_cache_dtype: torch.dtype | None = None, weights: Weights = "float"
) -> dict:
    loaded = tiny_model(dtype, kv_cache_dtype, weights=weights)
    return reference_digests(loaded, cases())


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    weights=st.sampled_from(WEIGHTS),
    kv_cache_dtype=st.sampled_from([None, torch.int8]),
    order=st.randoms(use_true_random=False),
    num_requests=st.integers(1, 13),
    budget=st.sampled_from([1, 2, 3, 5, 7, 16, 64, 10_000]),
    max_num_seqs=st.integers(1, 16),
    block_size=st.sampled_from([1, 2, 4, 16, 32]),
    num_spare_blocks=st.integers(0, 30),
    enable_prefix_caching=st.booleans(),
    num_threads=st.integers(1, 2),
    max_draft_tokens=st.sampled_from([0, 1, 3, 8]),
    preempt_at_steps=st.frozensets(st.integers(0, 80), max_size=20),
    steps_between_arrivals=st.integers(0, 4),
    num_rounds=st.integers(1, 2),
    abort_every=st.sampled_from([0, 0, 2, 3]),
)
def test_any_schedule_gives_the_bits_of_each_request_alone(
    dtype: torch.dtype,
    weights: Weights,
    kv_cache_dtype: torch.dtype | None,
    order: random.Random,
    num_requests: int,
    budget: int,
    max_num_seqs: int,
    block_size: int,
    num_spare_blocks: int,
    enable_prefix_caching: bool,
    num_threads: int,
    max_draft_tokens: int,
    **events,
):
    chosen = order.sample(cases(), num_requests)
    longest = max(len(c.prompt_token_ids) + c.params.max_tokens for c in chosen)
    options = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": max_num_seqs,
        "block_size": block_size,
        "num_kv_blocks": -(-longest // block_size) + num_spare_blocks,
        "enable_prefix_caching": enable_prefix_caching,
        "num_threads": num_threads,
        "max_draft_tokens": max_draft_tokens,
    }
    schedule = Schedule("drawn", options, **events)
    loaded = tiny_model(dtype, kv_cache_dtype, weights=weights)
    want = reference(dtype, kv_cache_dtype, weights)
    verdict = run_schedule(loaded, chosen, schedule, want)
    assert verdict.difference is None
    assert verdict.num_compared > 0


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sixty_four_copies_among_strangers_get_one_and_the_same_output(dtype, weights):
    loaded = tiny_model(dtype, weights=weights)
    prompt = prompt_of(20, seed=1)
    params = SamplingParams(temperature=1, seed=11, max_tokens=12)
    rng = random.Random(0)
    texts = set()
    for batch_size in (1, 2, 3, 8, 17, 64):
        engine = Engine(loaded, EngineConfig(model="tiny", num_kv_blocks=1024))
        copies = {}
        for k in range(batch_size):
            request_id = f"copy {k}"
            engine.add_request(engine.new_request(request_id, prompt, params))
            copies[request_id] = []
            if batch_size < 64:
                stranger = prompt_of(rng.randrange(1, 60), seed=rng.randrange(1000))
                engine.add_request(engine.new_request(f"stranger {k}", stranger, params))
        while engine.has_unfinished:
            for update in engine.step():
                if update.request_id in copies:
                    copies[update.request_id] += update.deltas[0].token_ids
        texts |= {tuple(tokens) for tokens in copies.values()}
    assert len(texts) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cache_hit_gives_the_bits_of_a_cold_start(dtype):
    case = Case("r", prompt_of(150, 99), SamplingParams(max_tokens=5, temperature=0))
    schedule = Schedule("twice", {"block_size": 4, "num_kv_blocks": 100}, num_rounds=2)
    verdict = run_schedule(
        tiny_model(dtype), [case], schedule, reference_digests(tiny_model(dtype), [case])
    )
    assert verdict.difference is None
    # The second round fed little: most rows of it were found.
    assert verdict.num_compared < 1.2 * 154


def test_a_changed_bit_is_found():
    """The check itself: a model that looks at its batch must fail it."""
    loaded = tiny_model()
    batch_sizes = []

    class Leaky:
        config = loaded.config
        embed = loaded.model.embed

        def forward(self, embeddings, inputs, caches):
            batch_sizes.append(len(embeddings))
            return loaded.model.forward(embeddings, inputs, caches)

        def logits(self, hidden):
            logits = loaded.model.logits(hidden)
            if batch_sizes[-1] == 7:
                logits[-1, 0] = torch.nextafter(logits[-1, 0], torch.tensor(torch.inf))
            return logits

    leaky = Leaky()
    observer = LogitsObserver(leaky, reference(torch.float32))
    engine = Engine(
        loaded,
        EngineConfig(model="tiny", num_kv_blocks=99, max_num_batched_tokens=7),
        FaultInjection(),
        observer,
    )
    engine._runner._model = leaky
    case = cases()[6]
    engine.add_request(engine.new_request(case.request_id, case.prompt_token_ids, case.params))
    while engine.has_unfinished:
        engine.step()
    assert observer.difference == (case.request_id, 0, 6)


def test_the_demo_model_passes_its_self_check(demo_model_path):
    loaded = load(EngineConfig(model=str(demo_model_path)))
    chosen = default_cases(loaded, max_tokens=6)
    verdicts = list(verify(loaded, chosen, default_schedules(chosen, loaded.device)))
    assert [v.schedule.name for v in verdicts if v.difference is not None] == []
    assert sum(v.num_preemptions for v in verdicts) > 0
