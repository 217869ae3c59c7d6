"""Runs the model for one step."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from pyengine import ops
from pyengine.engine.faults import FaultInjection
from pyengine.engine.input_batch import InputBatch, InputBuilder
from pyengine.engine.scheduler import ScheduledBatch
from pyengine.models.layers import KVCache
from pyengine.models.registry import CausalLM
from pyengine.outputs import TokenLogprobs
from pyengine.sampling import sample, token_logprobs


@dataclass
class StepOutput:
    """What a step computed for one row of its plan."""

    # What was sampled: nothing, a token, or, if guesses proved right, one more for each of them.
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]  # of each
    prompt_logprobs: list[TokenLogprobs]  # of the prompt tokens that follow the fed ones


# Sees the plan of a step and the hidden states [T, hidden] that the model computed for it.
Observer = Callable[[ScheduledBatch, Tensor], None]


class ModelRunner:
    """Turns a plan into tensors, runs the model, samples. Owned by the engine's thread.

    Args:
        model: computes hidden states and logits.
        cache: the paged K/V of all layers.
        block_size: tokens per block of it.
        faults: stages to fail, for tests.
        observer: called in each step, before anything is sampled.
    """

    def __init__(
        self,
        model: CausalLM,
        cache: KVCache,
        block_size: int,
        faults: FaultInjection | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._input_builder = InputBuilder(block_size, model.config.vocab_size)
        self._faults = faults or FaultInjection()
        self._observer = observer

    @torch.inference_mode()
    def execute(
        self, batch: ScheduledBatch, before_forward: Callable[[], None] | None = None
    ) -> list[StepOutput]:
        """Computes the rows of the plan; one output per row, in the plan's order. For
        `before_forward` see Engine.step."""
        self._faults.before_stage("inputs", batch.step)
        inputs = self._input_builder.build(batch)
        embeddings = self._model.embed(inputs.token_ids)
        if before_forward is not None:
            before_forward()
        self._faults.before_stage("forward", batch.step)
        hidden = self._forward(batch, inputs, embeddings)
        self._faults.before_stage("sample", batch.step)
        num_rows = sum(inputs.num_logits)
        if num_rows == 0:
            return [StepOutput([], [], []) for _ in batch.rows]
        logits = self._model.logits(hidden)
        # The prompt's first: sampling overwrites the rows that it samples from.
        prompt_logprobs: list[list[TokenLogprobs]] = [[] for _ in batch.rows]
        sampled_logits = logits
        if len(inputs.sampled_rows) != num_rows:  # others are about the prompt
            prompt_logprobs = self._prompt_logprobs(batch, inputs, logits)
            sampled_logits = logits[inputs.sampled_rows]
        sampled = sample(sampled_logits, inputs.sampling)
        outputs = []
        first = 0
        for row, prompt in zip(batch.rows, prompt_logprobs, strict=True):
            drafts = row.draft_token_ids
            end = first + (1 + len(drafts) if row.is_sampled else 0)
            num_drawn = _num_valid(drafts, sampled.token_ids[first:end])
            drawn = slice(first, first + num_drawn)
            outputs.append(StepOutput(sampled.token_ids[drawn], sampled.logprobs[drawn], prompt))
            first = end
        return outputs

    def _forward(self, batch: ScheduledBatch, inputs: InputBatch, embeddings: Tensor) -> Tensor:
        """The hidden states of the rows that need logits, in order."""
        fed = embeddings, inputs.attention, self._cache
        if self._observer is None:
            return self._model.forward(*fed, inputs.num_logits)
        hidden = self._model.forward(*fed)
        self._observer(batch, hidden)
        return ops.gather_logits(
            hidden,
            inputs.attention.query_start_loc,
            torch.tensor(inputs.num_logits, dtype=torch.int32),
            sum(inputs.num_logits),
        )

    def _prompt_logprobs(
        self, batch: ScheduledBatch, inputs: InputBatch, logits: Tensor
    ) -> list[list[TokenLogprobs]]:
        results: list[list[TokenLogprobs]] = []
        end_row = 0
        for row, num_logits in zip(batch.rows, inputs.num_logits, strict=True):
            first_row, end_row = end_row, end_row + num_logits
            sequence = row.sequence
            num_due = min(num_logits, sequence.num_prompt_logprobs_missing)
            if num_due == 0:
                results.append([])
                continue
            # The logits after the token at position p are about the token at p + 1.
            first_token = row.first_position + row.num_tokens - num_logits + 1
            token_ids = torch.tensor(sequence.token_ids[first_token : first_token + num_due])
            num_top = sequence.params.prompt_logprobs or 0
            results.append(
                token_logprobs(
                    logits[first_row : first_row + num_due], token_ids, [num_top] * num_due
                )
            )
        return results


def _num_valid(drafts: Seq[int], drawn: Seq[int]) -> int:
    """How many of the tokens drawn after a sequence's end and after each guess are its own: those
    before which all guesses are what was drawn."""
    for k, (draft, token_id) in enumerate(zip(drafts, drawn, strict=False)):
        if draft != token_id:
            return k + 1
    return len(drawn)
