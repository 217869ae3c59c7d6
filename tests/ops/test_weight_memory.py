"""Packed weights lie side by side in large chunks of memory: each in a place of its own."""

import torch

from pyengine import ops

CHUNK_BYTES = 64 * 2**20


def packed_ones(num_bytes: int) -> torch.Tensor:
    return ops.pack_linear_weight(torch.ones(num_bytes // 64, 32, dtype=torch.bfloat16))


def chunk_of(weight: torch.Tensor) -> int:
    return weight.untyped_storage().data_ptr()


def test_weights_of_all_sizes_and_dtypes_keep_their_numbers():
    generator = torch.Generator().manual_seed(0)
    weights = []
    for num_outputs in (1, 32, 100, 1000, 3000):
        for dtype in (torch.float32, torch.bfloat16):
            weight = torch.randn(num_outputs, 1025, generator=generator).to(dtype)
            weights.append((weight, ops.pack_linear_weight(weight)))
    for weight, packed in weights:
        every_row = torch.arange(weight.shape[0])
        assert packed.is_contiguous()
        assert packed.data_ptr() % 64 == 0
        assert torch.equal(ops.packed_embedding(every_row, packed, *weight.shape), weight)


def test_weights_share_chunks_and_a_large_one_gets_its_own():
    weights = [packed_ones(2**20) for _ in range(CHUNK_BYTES // 2**20)]
    assert len({chunk_of(weight) for weight in weights}) <= 2
    assert all(weight.untyped_storage().nbytes() == CHUNK_BYTES for weight in weights)
    large = packed_ones(CHUNK_BYTES + 2**20)
    assert large.untyped_storage().nbytes() >= large.nbytes
    assert chunk_of(large) not in {chunk_of(weight) for weight in weights}
    assert (large == 1).all()


def test_a_small_weight_keeps_no_chunk_alive():
    weight = packed_ones(2**12)
    assert weight.untyped_storage().nbytes() == weight.nbytes
