"""Runs requests on the tiny model in a tiny cache, and compares with uncontended runs."""

import dataclasses
import random

from pyengine.config import EngineConfig
from pyengine.engine import Engine, FaultInjection
from pyengine.engine.loading import LoadedModel
from pyengine.engine.scheduler import ScheduledBatch
from pyengine.engine.sequence import Sequence
from pyengine.errors import RequestTimeoutError
from pyengine.outputs import CompletionOutput, RequestOutput
from pyengine.sampling_params import SamplingParams
from tests.tiny import tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Token ids of a prompt; another seed gives another prompt."""
    rng = random.Random(1000 * seed + length)
    return [rng.randrange(256) for _ in range(length)]


def greedy(max_tokens: int = 12, **options) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **options)


class Harness:
    """An engine over 8 blocks of 4 tokens, unless said otherwise, and what it did."""

    def __init__(
        self,
        faults: FaultInjection | None = None,
        loaded: LoadedModel | None = None,
        **options,
    ) -> None:
        options = {
            "block_size": 4,
            "num_kv_blocks": 8,
            "max_num_batched_tokens": 32,
            "enable_prefix_caching": False,
            # No plan of a test may depend on how long a step takes.
            "target_itl_ms": 1e9,
            "max_draft_tokens": 0,
        } | options
        self.engine = Engine(loaded or tiny_model(), EngineConfig(model="tiny", **options), faults)
        self.batches: list[ScheduledBatch] = []
        self.outputs: dict[str, RequestOutput] = {}
        self.sequences: dict[str, list[Sequence]] = {}
        self.timed_out: list[str] = []  # request ids
        self._record_plans()

    def add(
        self,
        prompt: list[int],
        params: SamplingParams = GREEDY,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
    ) -> str:
        """Queues a request; returns its id: "r0", "r1", ..."""
        request_id = f"r{len(self.outputs)}"
        request = self.engine.new_request(
            request_id,
            prompt,
            params,
            priority=priority,
            timeout_s=timeout_s,
            cache_salt=cache_salt,
        )
        self.engine.add_request(request)
        self.outputs[request_id] = RequestOutput(
            request_id, None, prompt, [CompletionOutput(k) for k in range(params.n)], request.seed
        )
        self.sequences[request_id] = list(self.engine._open[request_id])
        return request_id

    def step(self) -> None:
        """One step, after which all must agree."""
        for update in self.engine.step():
            output = self.outputs[update.request_id]
            try:
                output.extend(update)
            except RequestTimeoutError:
                self.timed_out.append(update.request_id)
        self.engine.check_invariants()

    def run(self, max_steps: int = 2000) -> dict[str, RequestOutput]:
        """Steps until all requests have ended, then checks that nothing is left behind."""
        for _ in range(max_steps):
            if not self.engine.has_unfinished:
                self.check_nothing_left()
                return self.outputs
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps: {self.engine.stats()}")

    def check_nothing_left(self) -> None:
        self.engine.check_invariants()
        stats = self.engine.stats()
        assert (stats.num_waiting, stats.num_running, stats.num_used_blocks) == (0, 0, 0)
        assert not self.engine._open

    def fed(self, request_id: str) -> list[int]:
        """How many tokens of a request's first sequence each step fed."""
        sequence = self.sequences[request_id][0]
        return [
            row.num_tokens
            for batch in self.batches
            for row in batch.rows
            if row.sequence is sequence
        ]

    @property
    def num_preemptions(self) -> int:
        return self.engine.stats().num_preemptions

    def _record_plans(self) -> None:
        schedule = self.engine._scheduler.schedule

        def recording(now_ns: int) -> ScheduledBatch:
            batch = schedule(now_ns)
            self.batches.append(batch)
            return batch

        self.engine._scheduler.schedule = recording


def solo(
    prompt: list[int], params: SamplingParams = GREEDY, loaded: LoadedModel | None = None
) -> RequestOutput:
    """The same request alone, with plenty of blocks and no prefix cache."""
    harness = Harness(loaded=loaded, num_kv_blocks=128, max_num_batched_tokens=512)
    request_id = harness.add(prompt, params)
    return harness.run()[request_id]


def assert_same(output: RequestOutput, expected: RequestOutput) -> None:
    """Equal in all that the client reads, to the last bit. The timings are each run's own."""
    assert output.prompt_token_ids == expected.prompt_token_ids
    for mine, theirs in zip(output.outputs, expected.outputs, strict=True):
        assert dataclasses.replace(mine, timings=None) == dataclasses.replace(theirs, timings=None)
    assert output.prompt_logprobs == expected.prompt_logprobs
