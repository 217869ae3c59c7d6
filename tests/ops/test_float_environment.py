"""A process may flush denormal numbers to zero in some of its threads: results must not tell."""

import pytest
import torch

from pyengine import ops


@pytest.fixture
def flush_denormal():
    yield lambda: torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_flushing_denormal_numbers_changes_no_bit(flush_denormal, with_num_threads, num_threads):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 512, generator=generator) * 1e-20
    weight = ops.pack_linear_weight(torch.randn(2048, 512, generator=generator) * 1e-19)
    with_num_threads(num_threads)
    want = ops.linear(x, weight, None, 2048).view(torch.int32)
    is_denormal = want & 0x7F800000 == 0
    assert is_denormal.any()
    can_flush = flush_denormal()  # where a processor can't, nothing may change either
    got = ops.linear(x, weight, None, 2048).view(torch.int32)
    has_flushed = bool((torch.ones(1) * 1e-40).view(torch.int32) == 0)
    assert has_flushed == can_flush  # the caller's own state is back
    assert torch.equal(got, want)
