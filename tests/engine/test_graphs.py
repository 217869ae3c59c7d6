"""Steps that are recorded once and replayed, with a recording that is a plain call: what is left of
CUDA graphs where there is no GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyengine.engine.devices.cpu import CpuDevice
from pyengine.engine.devices.device import CacheShape
from pyengine.engine.devices.graphs import DecodeGraphs, graph_sizes
from pyengine.models.layers import AttentionInputs, KVCache
from tests.tiny import VOCAB_SIZE, tiny_model

BLOCK_SIZE, NUM_BLOCKS, MAX_BLOCKS_PER_SEQ = 4, 40, 6


class Recorder:
    """Counts the recordings; a replay calls again what was recorded."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        result = run().clone()
        self.sizes.append(len(result))

        def replay() -> None:
            result.copy_(run())

        return replay, result


def new_cache() -> KVCache:
    c = tiny_model().config
    shape = CacheShape(
        *(c.num_layers, NUM_BLOCKS, c.num_kv_heads, BLOCK_SIZE, c.head_size, torch.float32)
    )
    return CpuDevice().new_kv_cache(shape)


def new_graphs(cache: KVCache, recorder: Recorder, max_num_seqs: int = 20) -> DecodeGraphs:
    return DecodeGraphs(
        *(tiny_model().model, cache, max_num_seqs, MAX_BLOCKS_PER_SEQ),
        *(torch.device("cpu"), recorder),
    )


def decodes(lengths: list[int]) -> AttentionInputs:
    """One token for each sequence, each with blocks of its own."""
    tables = torch.zeros(len(lengths), max(-(-n // BLOCK_SIZE) for n in lengths), dtype=torch.int32)
    first = 1  # block 0 is nobody's
    for row, length in enumerate(lengths):
        num_blocks = -(-length // BLOCK_SIZE)
        tables[row, :num_blocks] = torch.arange(first, first + num_blocks)
        first += num_blocks
    positions = torch.tensor(lengths) - 1
    blocks = tables[torch.arange(len(lengths)), positions // BLOCK_SIZE].long()
    return AttentionInputs(
        positions=positions,
        slot_mapping=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        block_tables=tables,
        query_start_loc=torch.arange(len(lengths) + 1, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
    )


def eager(token_ids: Tensor, inputs: AttentionInputs, cache: KVCache) -> Tensor:
    model = tiny_model().model
    return model.forward(model.embed(token_ids), inputs, cache)


def test_sizes_go_up_to_the_largest_step():
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes(256)[-2:] == [248, 256]


@pytest.mark.parametrize("poison", [0.0, float("nan")])
def test_a_replayed_step_gives_the_bits_of_any_other(poison):
    """Whatever the step before it was, and whatever lies in the blocks of nobody."""
    replayed, plain = new_cache(), new_cache()
    for cache in (replayed, plain):
        for part in (cache.keys, cache.values):
            part.normal_(generator=torch.Generator().manual_seed(1))
            part[0] = poison
    recorder = Recorder()
    graphs = new_graphs(replayed, recorder)
    for lengths in ([5], [7, 1, 20], [3] * 9, [2, 9], [1] * 17, [6, 21, 4, 1]):
        inputs = decodes(lengths)
        token_ids = torch.arange(len(lengths)) * 7 % VOCAB_SIZE
        got = graphs.run(token_ids, inputs).clone()
        assert torch.equal(got, eager(token_ids, inputs, plain))
        # The free rows wrote nothing.
        assert torch.equal(replayed.keys[1:], plain.keys[1:])
        assert torch.equal(replayed.keys[0].isnan(), plain.keys[0].isnan())
    assert recorder.sizes == [1, 4, 16, 2, 20]


def test_a_size_is_recorded_when_it_first_occurs():
    recorder = Recorder()
    graphs = new_graphs(new_cache(), recorder)
    assert recorder.sizes == []
    for num_seqs in (2, 2, 1, 2):
        graphs.run(torch.zeros(num_seqs, dtype=torch.int64), decodes([3] * num_seqs))
    assert recorder.sizes == [2, 1]
