import pytest
import torch

from tests.cuda import nvcc
from tests.cuda.backend import Backend, emulated, real

# A test that can't be run is none: the summary says so instead (../conftest.py).
collect_ignore = [] if nvcc.NVCC else ["test_nvcc.py"]


def _backends() -> list[str]:
    """The emulation, with a block's threads in both orders, and the GPU if there is one."""
    names = ["ascending", "descending"]
    return [*names, "cuda"] if torch.cuda.is_available() else names


@pytest.fixture(params=_backends())
def backend(request: pytest.FixtureRequest) -> Backend:
    """Runs the operators of the CUDA backend on tensors of the CPU."""
    if request.param == "cuda":
        return real()
    return emulated(is_descending=request.param == "descending")
