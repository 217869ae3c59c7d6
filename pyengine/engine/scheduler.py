"""Which tokens are computed in the next step."""

import bisect
import dataclasses
from dataclasses import dataclass, field

from pyengine.engine.faults import FaultInjection
from pyengine.engine.kv_cache import KVCacheManager
from pyengine.engine.lookahead import Growth, peak_growth
from pyengine.engine.pacing import PrefillPacer
from pyengine.engine.sequence import Sequence, SequenceStatus

# The most rows of a step that has guesses. Up to about here a step is as long as it takes to read
# the weights; beyond, each guess would let all streams of the step wait for it.
_MAX_ROWS_WITH_GUESSES = 16
# How far ahead admission looks at most, in steps; see Scheduler._num_spare_blocks.
_MAX_LOOKAHEAD = 128


@dataclass(frozen=True)
class ScheduledSequence:
    """A row of the plan: the tokens of one sequence to feed in this step."""

    sequence: Sequence
    first_position: int  # of the tokens fed; those before it are in the cache
    num_tokens: int  # how many are fed, at least 1
    is_sampled: bool  # they reach the sequence's end, so a token is sampled after them
    # The last of the tokens fed, if any: guesses of what is sampled. A token is then sampled after
    # the sequence's last one and after each guess.
    draft_token_ids: tuple[int, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        """The tokens to feed."""
        end = self.first_position + self.num_tokens - len(self.draft_token_ids)
        return [*self.sequence.token_ids[self.first_position : end], *self.draft_token_ids]

    @property
    def is_decode(self) -> bool:
        return self.num_tokens - len(self.draft_token_ids) == 1


@dataclass
class ScheduledBatch:
    """The plan of one step."""

    step: int
    rows: list[ScheduledSequence] = field(default_factory=list)
    # Sequences fed again from prompt + generated tokens, as seen when they were still PREEMPTED.
    resumed_sequence_ids: set[int] = field(default_factory=set)
    preempted_sequence_ids: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_decodes(self) -> int:
        return sum(row.is_decode for row in self.rows)

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of longer rows: of prompts, or of resumed sequences."""
        return sum(row.num_tokens for row in self.rows if not row.is_decode)


def split_budget(needs: list[int], budget: int) -> list[int]:
    """Shares a token budget out to sequences that need so many tokens each, first come first
    served: each gets what it needs until the budget ends."""
    shares = []
    for need in needs:
        share = min(need, budget)
        shares.append(share)
        budget -= share
    return shares


class Scheduler:
    """Continuous batching with preemption by recompute. Owned by the engine's thread.

    `running` and `waiting` are sorted by `Sequence.order`, so that a preempted sequence, which
    was admitted before all that still wait, goes back to the front of the queue.

    Args:
        kv_cache: where the blocks come from.
        max_num_seqs: the most sequences that run at once. No more than the token budget can run,
            so that each gets at least one token a step.
        max_num_batched_tokens: the token budget of a step.
        pacer: bounds how many of them are of prompts while streams run.
        faults: preemptions to force, for tests.
    """

    def __init__(
        self,
        kv_cache: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        pacer: PrefillPacer,
        faults: FaultInjection | None = None,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        # Of first admissions alone: a resume that finds its own old blocks is no cache hit.
        self.num_prefix_queried_tokens = 0
        self.num_prefix_cached_tokens = 0
        self._kv_cache = kv_cache
        self._max_num_seqs = min(max_num_seqs, max_num_batched_tokens)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._pacer = pacer
        self._faults = faults or FaultInjection()

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        bisect.insort(self.waiting, sequence, key=lambda s: s.order)

    def schedule(self, now_ns: int) -> ScheduledBatch:
        """Plans a step and gives it the blocks that it needs.

        Running sequences go first, decodes before prefill chunks, so that a long prompt stops no
        stream; what is left of the budget admits waiting ones, in order. Of the n sequences of a
        request the first computes the prompt, the others find it cached. While streams run, the
        pacer bounds what is fed of prompts. The plan may be empty, if an allocation was made to
        fail.
        """
        batch = ScheduledBatch(step=self.num_steps)
        self.num_steps += 1
        if batch.step in self._faults.preempt_at_steps and self.running:
            self._preempt(self.running[-1], batch, now_ns)

        decodes = self._decodes_with_blocks(batch, now_ns)
        for sequence in decodes:
            self._feed(sequence, 1, batch)
        prefills = [s for s in self.running if s.num_uncomputed_tokens > 1]
        # Of a queue without end only what could run at once: each step looks at it.
        queue = (*prefills, *self.waiting[: self._max_num_seqs])
        num_waiting_tokens = sum(s.num_uncomputed_tokens for s in queue)
        budget = min(
            self._max_num_batched_tokens - len(decodes),
            self._pacer.limit(len(decodes), num_waiting_tokens),
        )
        shares = split_budget([s.num_uncomputed_tokens for s in prefills], budget)
        for sequence, share in zip(prefills, shares, strict=True):
            self._feed(sequence, share, batch)
        # A step that had to take blocks away has none to give to newcomers.
        if not batch.preempted_sequence_ids:
            self._admit(batch, budget - sum(shares), now_ns)
        # A step that computes prompts is as long as its tokens are many: guesses would cost most.
        if batch.num_tokens == len(decodes):
            self._add_drafts(batch)
        return batch

    def finish(self, sequence: Sequence, now_ns: int) -> None:
        """Takes a sequence out, wherever it is, and frees its blocks. Does nothing to one that
        has finished before."""
        if sequence.status is SequenceStatus.FINISHED:
            return
        queue = self.running if sequence.status is SequenceStatus.RUNNING else self.waiting
        queue.remove(sequence)
        self._kv_cache.release(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.clock.on_finished(now_ns)

    def _decodes_with_blocks(self, batch: ScheduledBatch, now_ns: int) -> list[Sequence]:
        """The sequences with one token to feed, each with a slot for it; to find the slots, the
        youngest are preempted. Only decodes need blocks: a prompt got its own on admission."""
        decodes: list[Sequence] = []
        for sequence in [s for s in self.running if s.num_uncomputed_tokens == 1]:
            if sequence.status is SequenceStatus.RUNNING and self._make_room(
                sequence, batch, now_ns
            ):
                decodes.append(sequence)
        return decodes

    def _make_room(self, sequence: Sequence, batch: ScheduledBatch, now_ns: int) -> bool:
        while not self._kv_cache.grow(sequence):
            victim = self.running[-1]
            if victim is self.running[0]:
                return False  # the oldest is never preempted: it tries again in the next step
            self._preempt(victim, batch, now_ns)
            if victim is sequence:
                return False
        return True

    def _admit(self, batch: ScheduledBatch, budget: int, now_ns: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            if self._awaits_leader(sequence):
                break
            if not self._kv_cache.admit(
                sequence, num_spare_blocks=self._num_spare_blocks(sequence)
            ):
                break
            del self.waiting[0]
            if sequence.status is SequenceStatus.PREEMPTED:
                batch.resumed_sequence_ids.add(sequence.sequence_id)
            else:
                sequence.num_cached_tokens = sequence.num_computed_tokens
                self.num_prefix_queried_tokens += sequence.num_prompt_tokens
                self.num_prefix_cached_tokens += sequence.num_cached_tokens
            sequence.status = SequenceStatus.RUNNING
            sequence.clock.on_scheduled(now_ns)
            bisect.insort(self.running, sequence, key=lambda s: s.order)
            share = min(sequence.num_uncomputed_tokens, budget)
            self._feed(sequence, share, batch)
            budget -= share

    def _awaits_leader(self, sequence: Sequence) -> bool:
        """Whether blocks of the prompt that the sequence could find in the prefix cache are still
        being computed, by the first of its request's sequences. Should that one lose its blocks,
        it goes before the others in the queue; should it end, they go on without it."""
        leader = sequence.leader
        if leader is None or leader.status is not SequenceStatus.RUNNING:
            return False
        num_common = min(sequence.num_prompt_tokens, self._kv_cache.num_cacheable_tokens(sequence))
        return leader.num_computed_tokens < num_common

    def _num_spare_blocks(self, newcomer: Sequence) -> int:
        """How many blocks must be left after the newcomer got those for its tokens so far.

        It would be the one to lose them, and all that it was fed would be fed again. So it waits
        until it can be expected to run for half as many steps as it has tokens. Further ahead less
        is certain: others may end before their max_tokens.
        """
        if not self.running:
            return 0
        size = self._kv_cache.block_size
        num_steps = max(size, min(newcomer.num_tokens // 2, _MAX_LOOKAHEAD))
        growths = [
            Growth(s.num_tokens, len(s.block_table), s.output.num_tokens_left) for s in self.running
        ]
        num_blocks = self._kv_cache.num_blocks_for(newcomer.num_tokens)
        growths.append(Growth(newcomer.num_tokens, num_blocks, newcomer.output.num_tokens_left))
        return max(0, peak_growth(growths, num_steps, size))

    def _add_drafts(self, batch: ScheduledBatch) -> None:
        """Lets decodes feed guessed tokens too, where that takes no block from anyone."""
        num_rows = min(self._max_num_batched_tokens, _MAX_ROWS_WITH_GUESSES)
        budget = num_rows - batch.num_tokens
        if budget <= 0:
            return
        for i, row in enumerate(batch.rows):
            sequence = row.sequence
            if sequence.drafter is None:
                continue
            # The last token that a sequence may get is never fed.
            num_most = max(0, min(sequence.output.num_tokens_left - 1, budget))
            guessed = sequence.drafter.guess(sequence.token_ids, len(batch.rows))[:num_most]
            if guessed and self._kv_cache.grow(sequence, len(guessed)):
                budget -= len(guessed)
                batch.rows[i] = dataclasses.replace(
                    row, num_tokens=1 + len(guessed), draft_token_ids=tuple(guessed)
                )

    def _feed(self, sequence: Sequence, num_tokens: int, batch: ScheduledBatch) -> None:
        if num_tokens == 0:
            return
        first = sequence.num_computed_tokens
        last = first + num_tokens
        num_recomputed = max(0, min(last, sequence.max_computed_tokens) - first)
        sequence.clock.num_recomputed_tokens += num_recomputed
        self.num_recomputed_tokens += num_recomputed
        batch.rows.append(
            ScheduledSequence(sequence, first, num_tokens, last == sequence.num_tokens)
        )

    def _preempt(self, victim: Sequence, batch: ScheduledBatch, now_ns: int) -> None:
        self.running.remove(victim)
        self._kv_cache.release(victim)
        victim.status = SequenceStatus.PREEMPTED
        victim.clock.on_preempted(now_ns)
        self.add(victim)
        self.num_preemptions += 1
        batch.preempted_sequence_ids.append(victim.sequence_id)
