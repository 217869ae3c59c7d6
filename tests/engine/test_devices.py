"""Which device an engine takes, and what it refuses to do on one."""

import pytest
import torch

from pyengine.config import EngineConfig
from pyengine.engine.devices import CpuDevice, CudaDevice, cuda, find_device
from pyengine.engine.devices.device import StepLimits
from pyengine.errors import ModelLoadError
from pyengine.models import ModelConfig
from tests.tiny import CONFIG

MODEL = ModelConfig.from_dict(CONFIG | {"head_dim": 64})


def config(**options) -> EngineConfig:
    return EngineConfig(model="m", **options)


def set_machine(monkeypatch, *, has_gpu: bool, has_kernels: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(cuda.ops, "has_cuda_kernels", lambda: has_kernels)


def test_without_a_gpu_it_is_the_cpu(monkeypatch):
    set_machine(monkeypatch, has_gpu=False, has_kernels=False)
    assert isinstance(find_device("auto"), CpuDevice)
    assert isinstance(find_device("cpu"), CpuDevice)
    with pytest.raises(ValueError, match="device must be cpu or auto here, got 'cuda': PyTorch se"):
        find_device("cuda")


def test_a_gpu_is_taken_if_there_are_kernels_for_it(monkeypatch):
    set_machine(monkeypatch, has_gpu=True, has_kernels=True)
    assert isinstance(find_device("auto"), CudaDevice)
    assert isinstance(find_device("cuda"), CudaDevice)
    assert isinstance(find_device("cpu"), CpuDevice)
    set_machine(monkeypatch, has_gpu=True, has_kernels=False)
    assert isinstance(find_device("auto"), CpuDevice)
    with pytest.raises(ValueError, match="pyengine was built without its CUDA kernels"):
        find_device("cuda")


def test_steps_are_as_large_as_suits_the_device():
    assert CpuDevice().limits(config()) == StepLimits(64, 512, max_draft_tokens=8)
    assert CudaDevice().limits(config()) == StepLimits(256, 8192, max_draft_tokens=0)
    given = {"max_num_seqs": 3, "max_num_batched_tokens": 5, "max_draft_tokens": 1}
    for device in (CpuDevice(), CudaDevice()):
        assert device.limits(config(**given)) == StepLimits(3, 5, max_draft_tokens=1)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("auto", torch.bfloat16), ("bfloat16", torch.bfloat16), ("float16", torch.float16)],
)
def test_a_gpu_computes_in_halves(dtype, expected):
    assert CudaDevice().resolve_dtype(config(dtype=dtype), MODEL) is expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "dtype must be auto, bfloat16 or float16 on a GPU, got 'float32'"),
        ({"quantization": "int4"}, "quantization must be auto or none on a GPU, got 'int4'"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype must be auto on a GPU, got 'int8'"),
        ({"block_size": 8}, "block_size must be 16 or 32 on a GPU, got 8"),
    ],
)
def test_what_a_gpu_does_not_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CudaDevice().resolve_dtype(config(**options), MODEL)


def test_heads_that_the_gpu_has_no_kernel_for_are_refused():
    with pytest.raises(ModelLoadError, match="heads of 16 values are not supported on a GPU"):
        CudaDevice().resolve_dtype(config(), ModelConfig.from_dict(CONFIG))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "dtype must be auto, float32 or bfloat16 on a CPU, got 'float16'"),
        ({"exact": False}, "exact must be true on a CPU"),
    ],
)
def test_what_a_cpu_does_not_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CpuDevice().resolve_dtype(config(**options), MODEL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device must be auto, cpu or cuda, got 'tpu'"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization must be more than 0 and at most 1"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization .* got 1.5"),
    ],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)
