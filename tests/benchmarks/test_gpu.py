"""The benchmark of a GPU, run small on the CPU: its figures mean nothing here, but all are made."""

import sys

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import Bench
from benchmarks.random_model import SHAPES, num_weight_bytes, random_model
from pyengine.engine.devices import CpuDevice
from pyengine.models import ModelConfig


def test_every_figure_is_measured():
    results = Bench(random_model("tiny", CpuDevice()), num_repeats=1, scale=64).run()
    assert [name.split(",")[0].split(":")[0] for name in results] == [
        "copy GB/s",
        *["decode attention"] * 2,
        "prefill attention",
        *["decode step"] * 4,  # batches of 1 and of 4, two figures each
        "prefill",
        "4 requests",
    ]
    assert all(value > 0 for value in results.values())


def test_the_floor_of_a_step_counts_the_weights_that_it_reads():
    config = ModelConfig.from_dict(SHAPES["qwen3-0.6b"])
    assert num_weight_bytes(config) == pytest.approx(1.19e9, rel=0.01)
    assert num_weight_bytes(ModelConfig.from_dict(SHAPES["llama-8b"])) == pytest.approx(
        15.0e9, rel=0.01
    )


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match=r"benchmarks\.gpu: .* PyTorch sees no GPU"):
        gpu.main()
