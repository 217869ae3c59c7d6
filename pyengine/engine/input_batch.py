"""From the plan of a step to the tensors of a step."""

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyengine._loader import load_core
from pyengine.engine.devices import Device
from pyengine.engine.scheduler import ScheduledBatch, ScheduledSequence
from pyengine.engine.sequence import Sequence
from pyengine.models.layers import AttentionInputs
from pyengine.sampling.sampler import DrawSettings, LogitBiases, PenaltyInputs, SamplingInputs
from pyengine.sampling_params import SamplingParams


@dataclass
class InputBatch:
    """The rows of a ScheduledBatch, one after another: T tokens of S sequences."""

    token_ids: Tensor  # int64 [T]
    attention: AttentionInputs
    # For each sequence, how many of its last fed tokens need logits: 1 if it is sampled, more
    # where tokens were guessed or log-probabilities of the prompt are due, else 0.
    num_logits: list[int]  # [S]
    # Which rows of logits are sampled: for each sampled sequence one, and one more per guess.
    sampled_rows: list[int]
    sampling: SamplingInputs


class InputBuilder:
    """Flattens plans.

    Args:
        block_size: tokens per block of the KV cache.
        vocab_size: logits per token.
        device: where the tensors go.
    """

    def __init__(self, block_size: int, vocab_size: int, device: Device) -> None:
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._device = device
        # Streams go on for many steps: what doesn't change is made once.
        self._drawn: list[Sequence] = []
        self._settings = self._draw_settings([])

    def build(self, batch: ScheduledBatch) -> InputBatch:
        rows = batch.rows
        flat = load_core().flatten_rows(
            [row.token_ids for row in rows],
            [row.first_position for row in rows],
            [row.sequence.block_table for row in rows],
            self._block_size,
        )
        token_ids, positions, slot_mapping, block_tables, query_start_loc, seq_lens = (
            self._device.place([torch.from_numpy(array) for array in flat])
        )
        num_logits = [_num_logits(row) for row in rows]
        logits_ends = itertools.accumulate(num_logits)
        sampled = [row for row in rows if row.is_sampled]
        return InputBatch(
            token_ids=token_ids,
            attention=AttentionInputs(
                positions=positions,
                slot_mapping=slot_mapping,
                block_tables=block_tables,
                query_start_loc=query_start_loc,
                seq_lens=seq_lens,
            ),
            num_logits=num_logits,
            sampled_rows=[
                logits_row
                for row, end in zip(rows, logits_ends, strict=True)
                if row.is_sampled
                for logits_row in range(end - 1 - len(row.draft_token_ids), end)
            ],
            sampling=self._sampling_inputs(sampled),
        )

    def _sampling_inputs(self, rows: Seq[ScheduledSequence]) -> SamplingInputs:
        # What is sampled after a guess is sampled as if the guesses before it were the sequence's.
        draws = [
            (row.sequence, row.draft_token_ids[:k])
            for row in rows
            for k in range(len(row.draft_token_ids) + 1)
        ]
        drawn = [s for s, _ in draws]
        if drawn != self._drawn:
            self._drawn, self._settings = drawn, self._draw_settings(drawn)
        output_indices = [s.num_output_tokens + len(drafts) for s, drafts in draws]
        (placed_indices,) = self._device.place(
            [torch.from_numpy(np.array(output_indices, dtype=np.int64))]
        )
        return SamplingInputs(
            self._settings,
            output_indices=placed_indices,
            penalties=self._penalty_inputs(draws),
            banned=[
                (i, sorted(s.output.ending_token_ids))
                for i, (s, index) in enumerate(zip(drawn, output_indices, strict=True))
                if index < s.params.min_tokens
                and s.output.ending_token_ids
                and not s.output.has_grammar
            ],
            forbidden=[
                (i, self._forbidden_tokens(s.output.allowed_tokens()))
                for i, s in enumerate(drawn)
                if s.output.has_grammar
            ],
        )

    def _forbidden_tokens(self, allowed: bytes) -> NDArray[np.bool_]:
        """bool [V], from a bit for each token of the vocabulary."""
        packed = np.invert(np.frombuffer(allowed, dtype=np.uint8))
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def _draw_settings(self, sequences: Seq[Sequence]) -> DrawSettings:
        params = [s.params for s in sequences]
        temperature, top_k, top_p, min_p, seeds = self._device.place(
            [
                _float32([p.temperature for p in params]),
                _int32([p.top_k for p in params]),
                _float32([p.top_p for p in params]),
                _float32([p.min_p for p in params]),
                torch.tensor([s.seed for s in sequences], dtype=torch.int64),
            ]
        )
        return DrawSettings(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seeds=seeds,
            num_logprobs=[p.logprobs for p in params],
            biases=self._logit_biases(params),
        )

    def _logit_biases(self, params: Seq[SamplingParams]) -> LogitBiases | None:
        biases = [
            (row, token_id, bias)
            for row, p in enumerate(params)
            for token_id, bias in (p.logit_bias or {}).items()
        ]
        if not biases:
            return None
        rows, token_ids, values = zip(*biases, strict=True)
        return LogitBiases(
            *self._device.place([torch.tensor(rows), torch.tensor(token_ids), _float32(values)])
        )

    def _penalty_inputs(self, draws: Seq[tuple[Sequence, tuple[int, ...]]]) -> PenaltyInputs | None:
        params = [s.params for s, _ in draws]
        if not any(
            p.repetition_penalty != 1 or p.presence_penalty or p.frequency_penalty for p in params
        ):
            return None
        start_loc = np.zeros(len(draws) + 1, dtype=np.int32)
        np.cumsum([s.num_tokens + len(drafts) for s, drafts in draws], out=start_loc[1:])
        return PenaltyInputs(
            *self._device.place(
                [
                    torch.tensor([t for s, drafts in draws for t in (*s.token_ids, *drafts)]),
                    torch.from_numpy(start_loc),
                    _int32([s.num_prompt_tokens for s, _ in draws]),
                    _float32([p.repetition_penalty for p in params]),
                    _float32([p.presence_penalty for p in params]),
                    _float32([p.frequency_penalty for p in params]),
                ]
            )
        )


def _num_logits(row: ScheduledSequence) -> int:
    sequence = row.sequence
    if sequence.num_prompt_logprobs_missing:
        first_due = max(row.first_position, sequence.output.num_prompt_logprobs)
        return max(0, row.first_position + row.num_tokens - first_due)
    return 1 + len(row.draft_token_ids) if row.is_sampled else 0


def _int32(values: Seq[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _float32(values: Seq[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
