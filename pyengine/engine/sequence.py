"""What the engine works on: a client's request, and the sequences made of it."""

import enum
import time
from dataclasses import dataclass, field

from pyengine.engine.drafter import Drafter
from pyengine.engine.output import SequenceOutput
from pyengine.engine.timings import SequenceClock
from pyengine.sampling_params import SamplingParams
from pyengine.structured import CompiledGrammar, GrammarMatcher


@dataclass(frozen=True)
class Request:
    """What a client asked for. It never changes.

    Args:
        request_id: unique among the open requests.
        prompt_token_ids: the prompt, at least one token.
        params: how to sample and when to stop.
        seed: what the noise of the first sequence is drawn from; see `seed_of`.
        prompt: the text that the ids came from, if there was one.
        priority: lower runs first; equal priorities run in order of arrival.
        timeout_s: the request ends with a RequestTimeoutError if it hasn't finished so many seconds
            after its arrival; None means never.
        grammar: what the output must match; None: it is free.
        cache_salt: the request shares cached prefixes with those of the same salt alone.
        arrival_ns: on the clock of `time.monotonic_ns`.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    prompt: str | None = None
    priority: int = 0
    timeout_s: float | None = None
    grammar: CompiledGrammar | None = None
    cache_salt: str | None = None
    arrival_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def deadline_ns(self) -> int | None:
        """On the clock of `time.monotonic_ns`."""
        return None if self.timeout_s is None else self.arrival_ns + int(self.timeout_s * 1e9)

    def new_matcher(self) -> GrammarMatcher | None:
        """What follows one sequence through the grammar, if there is one."""
        if self.grammar is None or self.params.grammar is None:
            return None
        return self.grammar.new_matcher(self.params.grammar.param)

    def seed_of(self, index: int) -> int:
        """What the noise of the index-th sequence is drawn from; replays it as a request's seed.
        Kept within int64, as the sampler takes it."""
        return (self.seed + index + 2**63) % 2**64 - 2**63


class SequenceStatus(enum.Enum):
    WAITING = enum.auto()  # never ran
    RUNNING = enum.auto()  # holds blocks
    PREEMPTED = enum.auto()  # ran, lost its blocks, waits to be recomputed
    FINISHED = enum.auto()


class Sequence:
    """One stream of tokens, prompt and generated. Owned by the engine's thread.

    Two numbers say what is to do: `num_tokens`, and `num_computed_tokens` whose K/V lie in the
    cache. Prefill, a chunk of it, decode and resume all compute the tokens between the two.
    """

    def __init__(
        self,
        sequence_id: int,
        request: Request,
        index: int,
        output: SequenceOutput,
        drafter: Drafter | None = None,
        leader: "Sequence | None" = None,
    ) -> None:
        self.sequence_id = sequence_id  # grows in order of arrival
        self.request_id = request.request_id
        self.index = index  # which of the request's n sequences
        self.params = request.params
        self.priority = request.priority
        self.cache_salt = request.cache_salt
        self.seed = request.seed_of(index)
        self.output = output
        self.drafter = drafter  # None: its tokens are not guessed ahead
        self.leader = leader  # the first of the request's n sequences; None: it is that itself
        self.clock = SequenceClock(start_ns=request.arrival_ns)
        self.status = SequenceStatus.WAITING
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        # The most tokens ever computed: feeding one below it again is recomputation.
        self.max_computed_tokens = 0
        self.num_cached_tokens = 0  # prompt tokens found in the prefix cache at first admission
        # The K/V blocks, in order of position; the first num_registered_blocks of them are known
        # to the prefix cache, the last of these under chain_id. Written by KVCacheManager alone.
        self.block_table: list[int] = []
        self.num_registered_blocks = 0
        self.chain_id = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def order(self) -> tuple[int, int]:
        """Sorts sequences: the first is served first, the last is preempted first."""
        return (self.priority, self.sequence_id)

    @property
    def num_prompt_logprobs_missing(self) -> int:
        """How many of the prompt's log-probabilities are still to be computed."""
        if self.params.prompt_logprobs is None:
            return 0
        return self.num_prompt_tokens - 1 - self.output.num_prompt_logprobs

    @property
    def num_shareable_tokens(self) -> int:
        """How many leading tokens may be taken from the prefix cache: the last token must be
        fed, and so must those whose log-probabilities of the prompt are missing."""
        if self.num_prompt_logprobs_missing:
            return self.output.num_prompt_logprobs
        return self.num_tokens - 1

    def __repr__(self) -> str:
        return (
            f"Sequence({self.sequence_id}, {self.request_id!r}[{self.index}], {self.status.name}, "
            f"{self.num_prompt_tokens}+{self.num_output_tokens} tokens, "
            f"{self.num_computed_tokens} computed, blocks {self.block_table})"
        )
