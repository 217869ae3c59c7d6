"""The self-check behind `pyengine verify`: the same requests under many schedules, bit for bit.

The reference is each request alone, fed token by token, without a prefix cache. Under every
schedule, the logits after every token fed must be those bits.
"""

import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyengine.config import EngineConfig
from pyengine.engine import Engine, FaultInjection
from pyengine.engine.devices import Device
from pyengine.engine.loading import LoadedModel
from pyengine.engine.scheduler import ScheduledBatch
from pyengine.engine.sequence import Sequence
from pyengine.models.registry import CausalLM
from pyengine.sampling_params import SamplingParams

# A place in the output: request, which of its sequences, position of the token.
Place = tuple[str, int, int]


@dataclass(frozen=True)
class Schedule:
    """A way to run requests."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)  # of EngineConfig
    preempt_at_steps: frozenset[int] = frozenset()
    steps_between_arrivals: int = 0
    num_rounds: int = 1  # later rounds find the prefixes of earlier ones in the cache
    backwards: bool = False  # the last request comes first
    abort_every: int = 0  # every so many requests, one is aborted after a few steps


@dataclass
class Verdict:
    """What running one schedule showed."""

    schedule: Schedule
    num_compared: int  # rows of logits
    num_preemptions: int
    difference: Place | None  # the first place where a bit differs


@dataclass(frozen=True)
class _Draft:
    """The logits after a token that was fed as a guess."""

    sequence: Sequence
    token_id: int
    place: Place
    digest: bytes


class LogitsObserver:
    """Sees the logits after every token that an engine feeds, as digests.

    Args:
        model: turns hidden states into logits.
        reference: what to compare with; None to collect one.
    """

    def __init__(self, model: CausalLM, reference: dict[Place, bytes] | None = None) -> None:
        self.digests: dict[Place, bytes] = {}
        self.num_compared = 0
        self.difference: Place | None = None
        self._model = model
        self._reference = reference
        self._drafts: list[_Draft] = []

    def __call__(self, batch: ScheduledBatch, hidden: Tensor) -> None:
        self.finish()
        logits = self._model.logits(hidden).cpu().numpy()
        row = 0
        for planned in batch.rows:
            sequence = planned.sequence
            # Later rounds name the same requests "round/request".
            request_id = sequence.request_id.rpartition("/")[2]
            first_draft = planned.num_tokens - len(planned.draft_token_ids)
            for k, token_id in enumerate(planned.token_ids):
                digest = hashlib.blake2b(logits[row].tobytes(), digest_size=16).digest()
                place = (request_id, sequence.index, planned.first_position + k)
                if k < first_draft:
                    self._see(place, digest)
                else:
                    self._drafts.append(_Draft(sequence, token_id, place, digest))
                row += 1

    def finish(self) -> None:
        """Looks at the logits after the last step's guesses, now that it is known which of them
        proved right."""
        for draft in self._drafts:
            position = draft.place[2]
            if draft.sequence.token_ids[position : position + 1] == [draft.token_id]:
                self._see(draft.place, draft.digest)
        self._drafts = []

    def _see(self, place: Place, digest: bytes) -> None:
        if self._reference is None:
            self.digests[place] = digest
            return
        self.num_compared += 1
        if self._reference.get(place) != digest and self.difference is None:
            self.difference = place


@dataclass(frozen=True)
class Case:
    """One request of the check."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams


def reference_digests(loaded: LoadedModel, cases: Seq[Case]) -> dict[Place, bytes]:
    """The logits of each case alone, token by token."""
    observer = LogitsObserver(loaded.model)
    block_size = EngineConfig(model=loaded.name).block_size
    for case in cases:
        num_tokens = len(case.prompt_token_ids) + (case.params.max_tokens or 1)
        config = EngineConfig(
            model=loaded.name,
            max_num_batched_tokens=1,
            num_kv_blocks=1 + num_tokens // block_size,
            max_draft_tokens=0,
            enable_prefix_caching=False,
        )
        engine = Engine(loaded, config, observer=observer)
        engine.add_request(engine.new_request(case.request_id, case.prompt_token_ids, case.params))
        while engine.has_unfinished:
            engine.step()
    return observer.digests


def run_schedule(
    loaded: LoadedModel,
    cases: Seq[Case],
    schedule: Schedule,
    reference: dict[Place, bytes],
) -> Verdict:
    """Runs the cases as the schedule says, and compares all logits with the reference."""
    observer = LogitsObserver(loaded.model, reference)
    num_threads = torch.get_num_threads()
    try:
        engine = Engine(
            loaded,
            EngineConfig(model=loaded.name, **schedule.options),
            FaultInjection(preempt_at_steps=schedule.preempt_at_steps),
            observer,
        )
        for number in range(schedule.num_rounds):
            _run_round(engine, f"{number}/", cases, schedule)
    finally:
        torch.set_num_threads(num_threads)
    observer.finish()
    engine.check_invariants()
    return Verdict(
        schedule, observer.num_compared, engine.stats().num_preemptions, observer.difference
    )


def verify(loaded: LoadedModel, cases: Seq[Case], schedules: Seq[Schedule]) -> Iterator[Verdict]:
    """Runs the cases under each schedule."""
    reference = reference_digests(loaded, cases)
    for schedule in schedules:
        yield run_schedule(loaded, cases, schedule, reference)


def _run_round(engine: Engine, prefix: str, cases: Seq[Case], schedule: Schedule) -> None:
    arrivals = list(reversed(cases)) if schedule.backwards else list(cases)
    for number, case in enumerate(arrivals, start=1):
        request_id = prefix + case.request_id
        engine.add_request(engine.new_request(request_id, case.prompt_token_ids, case.params))
        for _ in range(schedule.steps_between_arrivals):
            engine.step()
        if schedule.abort_every and number % schedule.abort_every == 0:
            engine.step()
            engine.abort_request(request_id)
    while engine.has_unfinished:
        engine.step()


def default_cases(loaded: LoadedModel, max_tokens: int) -> list[Case]:
    """Prompts of one to some hundred tokens, two of them with a common beginning; greedy and
    seeded ones in turn.

    Raises:
        ValueError: max_tokens leaves no room for a prompt.
    """
    longest = loaded.max_model_len - max_tokens
    if max_tokens < 1 or longest < 1:
        raise ValueError(
            f"max_tokens must be from 1 to {loaded.max_model_len - 1}, so that a prompt fits too, "
            f"got {max_tokens}"
        )
    text = (
        "An engine turns requests into tokens. It reads what came before, weighs what could come "
        "next, and says one word at a time. "
    )
    prompts = [
        "Hello",
        text,
        text + "What it says must not depend on who else is speaking.",
        "1, 1, 2, 3, 5, 8, 13,",
        text * 8,
        "def main():\n    ",
    ]
    cases = []
    for number, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=number % 2, seed=number, max_tokens=max_tokens, ignore_eos=True
        )
        token_ids = loaded.tokenizer.encode(prompt)[:longest]
        cases.append(Case(f"prompt {number}", token_ids, params))
    return cases


def default_schedules(cases: Seq[Case], device: Device) -> list[Schedule]:
    """Schedules that have broken other engines."""
    small = max(4, device.smallest_block_size)
    lengths = [len(case.prompt_token_ids) + (case.params.max_tokens or 1) for case in cases]
    tight = -(-max(lengths) // small) + 8  # the longest request and little beside it
    all_at_once = {"max_num_batched_tokens": sum(lengths)}
    return [
        Schedule("all at once", all_at_once),
        Schedule("all at once, on one thread", all_at_once | {"num_threads": 1}),
        Schedule("one after another", {"max_num_seqs": 1}),
        Schedule("the last first", all_at_once, backwards=True),
        Schedule("twice, with a prefix cache", num_rounds=2, steps_between_arrivals=2),
        *(Schedule(f"chunks of {n}", {"max_num_batched_tokens": n}) for n in (3, 7, 16, 100)),
        *(
            Schedule(f"blocks of {n}", {"block_size": n, "num_kv_blocks": 4096 // n})
            for n in (small, 32)
        ),
        Schedule("preempted every third step", preempt_at_steps=frozenset(range(2, 1000, 3))),
        Schedule("a cache for one request", {"block_size": small, "num_kv_blocks": tight}),
        Schedule("without guesses", all_at_once | {"max_draft_tokens": 0}),
        Schedule("neighbours that leave", abort_every=2, steps_between_arrivals=1),
    ]
