"""Steps on a GPU whose launches were recorded once and are replayed since.

A step in which every sequence feeds one token is hundreds of short kernels; launching them one by
one takes the processor longer than the GPU takes to run them. CUDA graphs launch all at once.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyengine.models.layers import AttentionInputs, KVCache
from pyengine.models.registry import CausalLM

# Records what a function launches: returns what replays it, and the function's result, which each
# replay overwrites.
Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


def graph_sizes(max_num_seqs: int) -> list[int]:
    """The numbers of sequences that graphs are made for: a step takes the next larger one."""
    small = [size for size in (1, 2, 4) if size < max_num_seqs]
    return [*small, *range(8, max_num_seqs, 8), max_num_seqs]


@dataclass
class _Graph:
    replay: Callable[[], None]
    hidden: Tensor  # [size, hidden]


class DecodeGraphs:
    """All layers, from token ids to the last norm, where each sequence feeds one token.

    Each size is captured when it first occurs. (The logits, which are large, would stay in memory
    for each size; they are one more launch.) The rows that a step leaves free compute on a token
    of no sequence and write nothing; what they compute is not looked at.

    Args:
        model, cache: what runs.
        max_num_seqs: the largest step.
        max_blocks_per_seq: entries of a block table.
        device: where.
        capture: how to record.
    """

    def __init__(
        self,
        model: CausalLM,
        cache: KVCache,
        max_num_seqs: int,
        max_blocks_per_seq: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        self._model = model
        self._cache = cache
        self._sizes = graph_sizes(max_num_seqs)
        self._capture = capture
        self._graphs: dict[int, _Graph] = {}
        self._token_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._inputs = AttentionInputs(
            positions=torch.zeros(max_num_seqs, dtype=torch.int64, device=device),
            slot_mapping=torch.full((max_num_seqs,), -1, dtype=torch.int64, device=device),
            block_tables=torch.zeros(
                max_num_seqs, max_blocks_per_seq, dtype=torch.int32, device=device
            ),
            query_start_loc=torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device),
            seq_lens=torch.ones(max_num_seqs, dtype=torch.int32, device=device),
        )

    def run(self, token_ids: Tensor, inputs: AttentionInputs) -> Tensor:
        """The hidden states of a step.

        Args:
            token_ids: int64 [S], one token of each sequence, on the device.
            inputs: where they belong.

        Returns:
            [S, hidden], after the last norm; overwritten by the next step.
        """
        num_seqs = token_ids.shape[0]
        size = self._sizes[bisect.bisect_left(self._sizes, num_seqs)]
        self._fill(token_ids, inputs, size)
        graph = self._graphs.get(size)
        if graph is None:
            graph = self._graphs[size] = _Graph(*self._capture(lambda: self._compute(size)))
        graph.replay()
        return graph.hidden[:num_seqs]

    def _fill(self, token_ids: Tensor, inputs: AttentionInputs, size: int) -> None:
        num_seqs, num_blocks = inputs.block_tables.shape
        mine = self._inputs
        self._token_ids[:num_seqs].copy_(token_ids)
        mine.positions[:num_seqs].copy_(inputs.positions)
        mine.slot_mapping[:num_seqs].copy_(inputs.slot_mapping)
        mine.block_tables[:num_seqs, :num_blocks].copy_(inputs.block_tables)
        mine.seq_lens[:num_seqs].copy_(inputs.seq_lens)
        # The rest: a first token, of what lies in the first block, written nowhere.
        mine.positions[num_seqs:size].zero_()
        mine.slot_mapping[num_seqs:size].fill_(-1)
        mine.block_tables[num_seqs:size, 0].zero_()
        mine.seq_lens[num_seqs:size].fill_(1)

    def _compute(self, size: int) -> Tensor:
        inputs = AttentionInputs(
            positions=self._inputs.positions[:size],
            slot_mapping=self._inputs.slot_mapping[:size],
            block_tables=self._inputs.block_tables[:size],
            query_start_loc=self._inputs.query_start_loc[: size + 1],
            seq_lens=self._inputs.seq_lens[:size],
        )
        embeddings = self._model.embed(self._token_ids[:size])
        return self._model.forward(embeddings, inputs, self._cache)


class CudaCapture:
    """Records CUDA graphs, which share one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        # A first run, aside, as PyTorch asks for: libraries set themselves up in it.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        return graph.replay, result
