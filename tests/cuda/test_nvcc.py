"""What nvcc says of the real kernels. Collected only where there is an nvcc (conftest.py)."""

import re

import pytest

from tests.cuda import nvcc


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    nvcc.compile_all()


@pytest.mark.parametrize("source", nvcc.SOURCES)
def test_kernels_compile_without_a_warning(source):
    assert not re.findall(r".*\bwarning\b.*", nvcc.log_of(source))


@pytest.mark.parametrize("source", nvcc.SOURCES)
def test_kernels_keep_what_they_compute_with_in_registers(source):
    log = nvcc.log_of(source)
    kernels = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\w+)'", log)
    assert {architecture for _, architecture in kernels} == set(nvcc.ARCHITECTURES)
    properties = r"Function properties for (\w+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill"
    spills = re.findall(properties, log)
    assert len(spills) >= len(kernels)
    assert [spill for spill in spills if spill[1:] != ("0", "0")] == []
