"""The gate of the MLP, and the ops that copy rows."""

import pytest
import torch

from pyengine import ops
from tests.cuda.numbers import DTYPES, assert_close


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 8, 96, 1000, 2056])
def test_the_gate_matches_the_reference(backend, dtype, size):
    x = torch.randn(5, 2 * size).to(dtype) * 4
    gate, up = x.double().chunk(2, 1)
    want = torch.nn.functional.silu(gate) * up
    tolerance = want.abs() * (torch.finfo(dtype).eps / 2 + 16 * torch.finfo(torch.float32).eps)
    assert_close(backend.silu_and_mul(x), want, dtype, tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gate_is_defined_for_all_numbers(backend, dtype):
    gate = torch.tensor([0.0, -0.0, 200.0, -200.0, torch.inf, torch.nan]).to(dtype)
    x = torch.cat([gate, torch.ones(6).to(dtype)])[None]
    got = backend.silu_and_mul(x)[0].float().tolist()
    assert got[:5] == [0, 0, 200, 0, torch.inf]
    assert got[5] != got[5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 9, 64, 1032])
def test_an_embedding_is_the_rows_of_its_tokens(backend, dtype, size):
    weight = torch.randn(11, size).to(dtype)
    token_ids = torch.tensor([3, 0, 10, 3])
    assert torch.equal(backend.embedding(token_ids, weight), weight[token_ids])
    assert backend.embedding(token_ids[:0], weight).shape == (0, size)


def test_what_is_no_token_has_no_row(backend):
    got = backend.embedding(torch.tensor([-1, 1, 3]), torch.ones(3, 8))
    assert got.sum(1).tolist() == [0, 8, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [3, 64, 1032])
def test_the_last_rows_of_each_sequence_are_gathered(backend, dtype, size):
    hidden = torch.randn(7, size).to(dtype)
    got = backend.gather_logits(hidden, int32([0, 1, 4, 4, 7]), int32([1, 0, 0, 2]), 3)
    assert torch.equal(got, hidden[[0, 5, 6]])


@pytest.mark.parametrize("num_seqs", [1, 31, 32, 33, 100])
def test_any_number_of_sequences_is_gathered_from(backend, num_seqs):
    generator = torch.Generator().manual_seed(num_seqs)
    lengths = torch.randint(0, 5, (num_seqs,), generator=generator)
    wanted = torch.minimum(torch.randint(0, 4, (num_seqs,), generator=generator), lengths)
    starts = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    hidden = torch.randn(int(lengths.sum()), 16)
    args = hidden, starts, wanted.int(), int(wanted.sum())
    assert torch.equal(backend.gather_logits(*args), ops.gather_logits(*args))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_lie_anywhere_give_the_same_bits(backend, dtype):
    """Sixteen bytes are loaded at once only where they may be."""
    memory = torch.randn(6 * 64 + 1).to(dtype)
    shifted = memory[1:].view(6, 64)
    plain = shifted.clone()
    weight = torch.randn(64).to(dtype)
    assert torch.equal(backend.silu_and_mul(shifted), backend.silu_and_mul(plain))
    token_ids = torch.tensor([5, 1])
    assert torch.equal(backend.embedding(token_ids, shifted), plain[token_ids])
    got, want = backend.rms_norm(shifted, weight, 1e-5), backend.rms_norm(plain, weight, 1e-5)
    assert torch.equal(got, want)
