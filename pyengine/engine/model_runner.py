"""Runs the model for one step."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from pyengine import ops
from pyengine.engine.devices import Device
from pyengine.engine.devices.graphs import DecodeGraphs
from pyengine.engine.faults import FaultInjection
from pyengine.engine.input_batch import InputBatch, InputBuilder
from pyengine.engine.scheduler import ScheduledBatch
from pyengine.models.layers import KVCache
from pyengine.models.registry import CausalLM
from pyengine.outputs import TokenLogprobs
from pyengine.sampling import DrawnLogprobs, sample, token_logprobs


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
        device: where both are.
        graphs: what runs steps of one token a sequence, if anything does.
        faults: stages to fail, for tests.
        observer: called in each step, before anything is sampled.
    """

    def __init__(
        self,
        model: CausalLM,
        cache: KVCache,
        block_size: int,
        device: Device,
        graphs: DecodeGraphs | None = None,
        faults: FaultInjection | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._device = device
        self._graphs = graphs
        self._input_builder = InputBuilder(block_size, model.config.vocab_size, device)
        self._faults = faults or FaultInjection()
        self._observer = observer

    @torch.inference_mode()
    def execute(
        self, batch: ScheduledBatch, before_longest: Callable[[], None] | None = None
    ) -> list[StepOutput]:
        """Computes the rows of the plan; one output per row, in the plan's order. For
        `before_longest` see Engine.step."""
        self._faults.before_stage("inputs", batch.step)
        inputs = self._input_builder.build(batch)
        is_on_cpu = inputs.token_ids.device.type == "cpu"
        logits = self._logits(batch, inputs, before_longest if is_on_cpu else None)
        self._faults.before_stage("sample", batch.step)
        if logits is None:
            self._device.synchronize()  # so that the step's time is its own
            return [StepOutput([], [], []) for _ in batch.rows]
        # The prompt's first: sampling overwrites the rows that it samples from.
        drawn_prompt_logprobs: list[DrawnLogprobs | None] = [None] * len(batch.rows)
        sampled_logits = logits
        if len(inputs.sampled_rows) != len(logits):  # others are about the prompt
            drawn_prompt_logprobs = self._prompt_logprobs(batch, inputs, logits)
            sampled_logits = logits[inputs.sampled_rows]
        drawn = sample(sampled_logits, inputs.sampling)
        if before_longest is not None and not is_on_cpu:
            before_longest()  # what was launched so far is waited for now
        sampled = drawn.collect()
        prompt_logprobs = [
            [] if logprobs is None else logprobs.collect() for logprobs in drawn_prompt_logprobs
        ]
        outputs = []
        first = 0
        for row, prompt in zip(batch.rows, prompt_logprobs, strict=True):
            drafts = row.draft_token_ids
            end = first + (1 + len(drafts) if row.is_sampled else 0)
            num_drawn = _num_valid(drafts, sampled.token_ids[first:end])
            own = slice(first, first + num_drawn)
            outputs.append(StepOutput(sampled.token_ids[own], sampled.logprobs[own], prompt))
            first = end
        return outputs

    def _logits(
        self,
        batch: ScheduledBatch,
        inputs: InputBatch,
        before_forward: Callable[[], None] | None,
    ) -> Tensor | None:
        """The logits that are needed, float32 [sum of num_logits, vocab]; None if none are."""
        num_rows, num_tokens = sum(inputs.num_logits), len(inputs.token_ids)
        is_decode = num_rows == num_tokens == len(batch.rows)
        if self._graphs is not None and self._observer is None and is_decode:
            self._faults.before_stage("forward", batch.step)
            return self._model.logits(self._graphs.run(inputs.token_ids, inputs.attention))
        embeddings = self._model.embed(inputs.token_ids)
        if before_forward is not None:
            before_forward()
        self._faults.before_stage("forward", batch.step)
        hidden = self._forward(batch, inputs, embeddings)
        return self._model.logits(hidden) if num_rows else None

    def _forward(self, batch: ScheduledBatch, inputs: InputBatch, embeddings: Tensor) -> Tensor:
        """The hidden states of the rows that need logits, in order."""
        fed = embeddings, inputs.attention, self._cache
        if self._observer is None:
            return self._model.forward(*fed, inputs.num_logits)
        hidden = self._model.forward(*fed)
        self._observer(batch, hidden)
        counts = torch.tensor(inputs.num_logits, dtype=torch.int32, device=hidden.device)
        return ops.gather_logits(
            hidden, inputs.attention.query_start_loc, counts, sum(inputs.num_logits)
        )

    def _prompt_logprobs(
        self, batch: ScheduledBatch, inputs: InputBatch, logits: Tensor
    ) -> list[DrawnLogprobs | None]:
        results: list[DrawnLogprobs | None] = []
        end_row = 0
        for row, num_logits in zip(batch.rows, inputs.num_logits, strict=True):
            first_row, end_row = end_row, end_row + num_logits
            sequence = row.sequence
            num_due = min(num_logits, sequence.num_prompt_logprobs_missing)
            if num_due == 0:
                results.append(None)
                continue
            # The logits after the token at position p are about the token at p + 1.
            first_token = row.first_position + row.num_tokens - num_logits + 1
            (token_ids,) = self._device.place(
                [torch.tensor(sequence.token_ids[first_token : first_token + num_due])]
            )
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
