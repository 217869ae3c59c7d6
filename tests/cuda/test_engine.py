"""The engine on the kernels of the CUDA backend, emulated or on a GPU: whole requests, preempted
and not, must come out the same to the last bit."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from pyengine.config import EngineConfig
from pyengine.engine import Engine
from pyengine.engine.devices import CpuDevice, CudaDevice
from pyengine.engine.devices.device import Device
from pyengine.engine.devices.graphs import DecodeGraphs
from pyengine.engine.loading import LoadedModel
from pyengine.models import ModelConfig, llama, load_model
from pyengine.ops import attention, linear_layers, rowwise, sampling
from pyengine.sampling_params import SamplingParams
from pyengine.verify import Case, Schedule, reference_digests, run_schedule
from tests.cuda.backend import emulated
from tests.engine.harness import prompt_of
from tests.engine.test_graphs import Recorder
from tests.tiny import CONFIG, RandomWeights, tiny_model

SHAPE = CONFIG | {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
MAX_MODEL_LEN = 256


class EmulatedDevice(CpuDevice):
    """Tensors of the CPU; steps of one token a sequence are replayed, as on a GPU."""

    def new_graphs(self, model, cache, max_num_seqs, max_blocks_per_seq):
        return DecodeGraphs(
            model, cache, max_num_seqs, max_blocks_per_seq, self.torch_device, Recorder()
        )


def load(device: Device) -> LoadedModel:
    config = ModelConfig.from_dict(SHAPE)
    weights = RandomWeights(config)
    model = load_model(config, weights, torch.bfloat16, MAX_MODEL_LEN, device=device.torch_device)
    return dataclasses.replace(
        tiny_model(torch.bfloat16),
        model=model,
        config=config,
        max_model_len=MAX_MODEL_LEN,
        device=device,
    )


@pytest.fixture(
    scope="module", params=["emulated", *(["cuda"] if torch.cuda.is_available() else [])]
)
def loaded(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    """A tiny model that computes with the kernels, operator by operator."""
    if request.param == "cuda":
        yield load(CudaDevice())
        return
    library = emulated().library
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, linear_layers, rowwise, sampling):
            patch.setattr(module, "ops", library)
        patch.setattr(llama, "FusedDecoder", lambda layerwise: layerwise)
        yield load(EmulatedDevice())


def cases() -> list[Case]:
    kinds = [
        {"temperature": 0, "logprobs": 2},
        {"temperature": 1, "seed": 3},
        {"temperature": 1, "seed": 5, "top_k": 9, "repetition_penalty": 1.2},
    ]
    return [
        Case(f"r{k}", prompt_of(1 + 9 * k, k), SamplingParams(max_tokens=3 + k, **kinds[k % 3]))
        for k in range(4)
    ]


@pytest.fixture(scope="module")
def reference(loaded: LoadedModel):
    return reference_digests(loaded, cases())


BLOCKS = {"block_size": 16, "max_draft_tokens": 0}


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule("all at once", BLOCKS | {"num_kv_blocks": 20}),
        Schedule("chunks of 7", BLOCKS | {"num_kv_blocks": 20, "max_num_batched_tokens": 7}),
        Schedule("a cache for one request", BLOCKS | {"num_kv_blocks": 3}),
        Schedule("guesses", {"block_size": 32, "num_kv_blocks": 20, "max_draft_tokens": 3}),
        Schedule(
            "preempted, then found in the cache",
            BLOCKS | {"num_kv_blocks": 20},
            preempt_at_steps=frozenset({2, 4}),
            num_rounds=2,
        ),
    ],
    ids=lambda schedule: schedule.name,
)
def test_any_schedule_gives_the_bits_of_each_request_alone(loaded, reference, schedule):
    verdict = run_schedule(loaded, cases(), schedule, reference)
    assert verdict.difference is None
    assert verdict.num_compared > 0


def outputs(loaded: LoadedModel, *, observer=None, **options) -> dict[str, list]:
    """The tokens of each case, and the log-probabilities that it asked for."""
    config = EngineConfig(model="tiny", num_kv_blocks=20, **BLOCKS, **options)
    engine = Engine(loaded, config, observer=observer)
    for case in cases():
        engine.add_request(engine.new_request(case.request_id, case.prompt_token_ids, case.params))
    collected: dict[str, list] = {case.request_id: [] for case in cases()}
    while engine.has_unfinished:
        for update in engine.step():
            delta = update.deltas[0]
            collected[update.request_id] += zip(
                delta.token_ids, delta.logprobs or [None] * len(delta.token_ids), strict=True
            )
    return collected


def test_replayed_steps_give_what_launched_ones_give(loaded):
    """With an observer, nothing is replayed."""
    replayed = outputs(loaded)
    assert replayed == outputs(loaded, observer=lambda batch, hidden: None)
    assert replayed == outputs(loaded, max_num_seqs=1)
    assert [len(tokens) for tokens in replayed.values()] == [3, 4, 5, 6]
