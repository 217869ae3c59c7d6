"""The engine: requests in, updates out, one step at a time."""

import logging
import random
import time
from collections.abc import Callable

import torch

from pyengine.config import EngineConfig
from pyengine.engine.deadlines import Deadlines
from pyengine.engine.devices.device import CacheShape
from pyengine.engine.drafter import Drafter
from pyengine.engine.faults import FaultInjection
from pyengine.engine.kv_cache import KVCacheManager
from pyengine.engine.loading import LoadedModel, choose_num_kv_blocks, load
from pyengine.engine.memory import return_free_memory
from pyengine.engine.model_runner import ModelRunner, Observer, StepOutput
from pyengine.engine.output import SequenceOutput
from pyengine.engine.pacing import PrefillPacer
from pyengine.engine.page_toucher import PageToucher
from pyengine.engine.request_checks import check_request
from pyengine.engine.scheduler import ScheduledBatch, ScheduledSequence, Scheduler
from pyengine.engine.sequence import Request, Sequence
from pyengine.engine.stats import EngineStats
from pyengine.errors import GrammarTooComplexError, RequestTimeoutError, StepFailedError
from pyengine.outputs import RequestUpdate, SequenceDelta
from pyengine.sampling_params import SamplingParams
from pyengine.structured import GrammarCompiler

logger = logging.getLogger(__name__)

# So much of the KV cache is got from the system before it is used. All of it would take the memory
# whether or not it is ever needed.
_READY_KV_BYTES = 128 << 20

# As many as a JavaScript client can read back exactly.
_SEED_BITS = 53


class Engine:
    """Runs requests to their ends. Owned by one thread.

    Args:
        loaded: the model.
        config: the options.
        faults: what goes wrong, for tests.
        observer: sees the plan and the hidden states of each step.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        faults: FaultInjection | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.loaded = loaded
        self.config = config
        self.limits = limits = loaded.device.limits(config)
        self.num_kv_blocks = choose_num_kv_blocks(config, loaded, limits.max_num_seqs)
        # The longest sequence: the model's length, or the whole pool.
        self.max_sequence_len = min(loaded.max_model_len, self.num_kv_blocks * config.block_size)
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._kv_cache = KVCacheManager(
            self.num_kv_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            faults=faults,
        )
        self._pacer = PrefillPacer(config.target_itl_ms, limits.max_num_batched_tokens)
        self._scheduler = Scheduler(
            self._kv_cache,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            pacer=self._pacer,
            faults=faults,
        )
        shape = loaded.config
        cache = loaded.device.new_kv_cache(
            CacheShape(
                shape.num_layers,
                self.num_kv_blocks,
                shape.num_kv_heads,
                config.block_size,
                shape.head_size,
                loaded.kv_cache_dtype,
            )
        )
        self._kv_block_bytes = cache.keys[0].numel() * 2 * cache.keys.element_size()
        self._page_toucher = None
        if cache.keys.device.type == "cpu":
            self._page_toucher = PageToucher(
                cache.keys.data_ptr(), self.num_kv_blocks * self._kv_block_bytes, _READY_KV_BYTES
            )
        graphs = loaded.device.new_graphs(
            loaded.model,
            cache,
            limits.max_num_seqs,
            -(-self.max_sequence_len // config.block_size),
        )
        self._runner = ModelRunner(
            loaded.model, cache, config.block_size, loaded.device, graphs, faults, observer
        )
        self._faults = faults or FaultInjection()
        self._grammars = GrammarCompiler(loaded.tokenizer, shape.vocab_size)
        self._seeds = random.Random(config.seed)
        self._open: dict[str, list[Sequence]] = {}  # the unfinished sequences of each request
        self._deadlines = Deadlines()
        self._num_sequences = 0
        self._num_accepted_requests = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_draft_tokens = 0
        self._num_accepted_draft_tokens = 0
        self._num_aborted_requests = 0
        self._num_timed_out_requests = 0

    @classmethod
    def from_config(cls, config: EngineConfig, *, show_progress: bool = False) -> "Engine":
        """Loads the model that `config` names.

        Raises:
            ModelLoadError: its files are missing, broken or unsupported.
            ValueError: the options don't fit the model or the machine.
        """
        loaded = load(config, show_progress=show_progress)
        return_free_memory()  # loading has made copies of the weights
        return cls(loaded, config)

    def describe(self) -> str:
        """What was chosen, in one line: model, dtype, lengths, memory, kernels."""
        loaded, block_size = self.loaded, self.config.block_size
        block_bytes = block_size * loaded.config.kv_bytes_per_token(loaded.kv_cache_dtype)
        return (
            f"{loaded.name}: {str(loaded.dtype).removeprefix('torch.')}, "
            f"sequences of up to {self.max_sequence_len} tokens, "
            f"{str(loaded.kv_cache_dtype).removeprefix('torch.')} "
            f"KV cache of {self.num_kv_blocks} blocks of {block_size} tokens "
            f"({self.num_kv_blocks * block_bytes / 2**20:.0f} MiB), "
            f"{loaded.device.describe()}"
        )

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    def new_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
        arrival_ns: int | None = None,
    ) -> Request:
        """A request that this engine can serve, with a seed drawn if `params` has none, and
        arriving now unless it is told when it did. May be called from any thread; with a grammar it
        may take a second or two, see GrammarCompiler.

        Raises:
            InvalidRequestError: it can never be served; `param` names the field at fault.
        """
        check_request(
            prompt_token_ids,
            params,
            max_sequence_len=self.max_sequence_len,
            vocab_size=self.loaded.config.vocab_size,
        )
        seed = self._seeds.getrandbits(_SEED_BITS) if params.seed is None else params.seed
        grammar = None if params.grammar is None else self._grammars.compile(params.grammar)
        return Request(
            request_id,
            prompt_token_ids,
            params,
            seed,
            prompt=prompt,
            priority=priority,
            timeout_s=timeout_s,
            grammar=grammar,
            cache_salt=cache_salt,
            arrival_ns=time.monotonic_ns() if arrival_ns is None else arrival_ns,
        )

    def add_request(self, request: Request) -> None:
        """Queues the request's sequences.

        Raises:
            ValueError: a request of this id is still open.
        """
        if request.request_id in self._open:
            raise ValueError(f"request {request.request_id!r} is already open")
        leader = self._new_sequence(request, 0, None)
        followers = [self._new_sequence(request, k, leader) for k in range(1, request.params.n)]
        sequences = [leader, *followers]
        self._open[request.request_id] = sequences
        for sequence in sequences:
            self._scheduler.add(sequence)
        if request.deadline_ns is not None:
            self._deadlines.add(request.request_id, request.deadline_ns)
        self._num_accepted_requests += 1
        self._num_prompt_tokens += len(request.prompt_token_ids)

    def prepare_grammars(self) -> None:
        """Does what the first grammar needs, so that no running request has to wait for it."""
        self._grammars.prepare()

    def prepare(self) -> bool:
        """Does a little of what makes later steps faster, for a time without requests.

        Returns:
            False if there is nothing left to do.
        """
        if self._page_toucher is None:
            return False
        return self._page_toucher.touch(self._kv_cache.num_used_blocks_ever * self._kv_block_bytes)

    def abort_request(self, request_id: str) -> None:
        """Ends a request and frees its blocks; does nothing if it is not open."""
        sequences = self._open.pop(request_id, None)
        if sequences is None:
            return
        self._deadlines.discard(request_id)
        self._num_aborted_requests += 1
        for sequence in sequences:
            self._scheduler.finish(sequence, time.monotonic_ns())

    def step(self, before_longest: Callable[[], None] | None = None) -> list[RequestUpdate]:
        """Computes one batch; returns what it added to each request that it touched.

        If there is one, `before_longest` is called right before the longest call of the step, in
        which other threads may run Python.

        Requests whose deadline has passed end first, wherever they are, with a
        RequestTimeoutError. A failure while computing ends the requests of the batch with a
        StepFailedError, and those alone; a grammar that takes too much work ends its request with a
        GrammarTooComplexError. What else goes wrong, and a GPU that has failed, is a fault of the
        engine, and is raised.
        """
        start_ns = time.monotonic_ns()
        timed_out = self._time_out(start_ns)
        batch = self._scheduler.schedule(start_ns)
        if not batch.rows:
            return timed_out
        try:
            outputs = self._runner.execute(batch, before_longest)
        except torch.AcceleratorError:
            raise  # a GPU that has failed fails every step from now on
        except Exception as error:
            logger.exception("step %d failed", batch.step)
            return timed_out + self._fail(batch.rows, _step_failure(batch, error))
        updates = timed_out + self._finish(batch, outputs)
        step_ms = (time.monotonic_ns() - start_ns) / 1e6
        self._pacer.observe(batch.num_decodes, batch.num_prompt_tokens, step_ms)
        return updates

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            num_waiting=len(scheduler.waiting),
            num_running=len(scheduler.running),
            num_blocks=self.num_kv_blocks,
            num_used_blocks=self.num_kv_blocks - self._kv_cache.num_free_blocks,
            num_accepted_requests=self._num_accepted_requests,
            num_accepted_sequences=self._num_sequences,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_prefix_queried_tokens=scheduler.num_prefix_queried_tokens,
            num_cached_tokens=scheduler.num_prefix_cached_tokens,
            num_recomputed_tokens=scheduler.num_recomputed_tokens,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_draft_tokens=self._num_accepted_draft_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_aborted_requests=self._num_aborted_requests,
            num_timed_out_requests=self._num_timed_out_requests,
            num_steps=scheduler.num_steps,
        )

    def check_invariants(self) -> None:
        """Checks that blocks, queues and open requests agree.

        Raises:
            RuntimeError: they don't; the message names what is at fault.
        """
        queued = [*self._scheduler.waiting, *self._scheduler.running]
        self._kv_cache.check_invariants(queued)
        unfinished = [s for sequences in self._open.values() for s in sequences]
        if {id(s) for s in queued} != {id(s) for s in unfinished}:
            raise RuntimeError(f"queued sequences {queued} are not the open ones {unfinished}")

    def clear_prefix_cache(self) -> None:
        """Forgets all cached prefixes."""
        self._kv_cache.clear_prefix_cache()

    def _new_sequence(self, request: Request, index: int, leader: Sequence | None) -> Sequence:
        room = self.max_sequence_len - len(request.prompt_token_ids) + 1
        output = SequenceOutput(
            index,
            request.params,
            self.loaded.tokenizer,
            room if request.params.max_tokens is None else request.params.max_tokens,
            request.new_matcher(),
        )
        self._num_sequences += 1
        max_drafts = self.limits.max_draft_tokens
        # What a grammar allows after a guess is known only once the guess has proved right.
        drafter = Drafter(max_drafts) if max_drafts and request.grammar is None else None
        return Sequence(self._num_sequences - 1, request, index, output, drafter, leader)

    def _finish(self, batch: ScheduledBatch, outputs: list[StepOutput]) -> list[RequestUpdate]:
        now_ns = time.monotonic_ns()
        touched: list[Sequence] = []
        failed: list[tuple[ScheduledSequence, Exception]] = []
        for row, output in zip(batch.rows, outputs, strict=True):
            try:
                self._faults.before_stage("outputs", batch.step)
                self._advance(row, output, now_ns)
            except GrammarTooComplexError as error:
                failed.append((row, error))  # the request's fault, and foreseen
            except Exception as error:
                logger.exception("the output of %r failed", row.sequence)
                failed.append((row, _step_failure(batch, error)))
            else:
                if row.is_sampled:
                    touched.append(row.sequence)
        updates = self._update(touched, now_ns)
        for row, failure in failed:
            updates += self._fail([row], failure)
        return updates

    def _advance(self, row: ScheduledSequence, output: StepOutput, now_ns: int) -> None:
        """Takes what a step computed into the sequence."""
        sequence = row.sequence
        if output.prompt_logprobs:
            sequence.output.extend_prompt_logprobs(output.prompt_logprobs)
        # What was fed and is the sequence's own: all but the guesses, and those that proved right.
        num_valid = row.num_tokens - len(row.draft_token_ids) + max(0, len(output.token_ids) - 1)
        for token_id, logprobs in zip(output.token_ids, output.logprobs, strict=True):
            if sequence.output.finish_reason is not None:
                break  # right, but after the end, or the prompt was only to be scored
            sequence.clock.on_token(now_ns)
            sequence.token_ids.append(token_id)
            sequence.output.append(token_id, logprobs)
            self._num_generated_tokens += 1
        sequence.num_computed_tokens = min(row.first_position + num_valid, sequence.num_tokens)
        sequence.max_computed_tokens = max(
            sequence.max_computed_tokens, sequence.num_computed_tokens
        )
        self._kv_cache.register(sequence)
        if row.draft_token_ids:
            self._num_draft_tokens += len(row.draft_token_ids)
            self._num_accepted_draft_tokens += len(output.token_ids) - 1

    def _update(self, sequences: list[Sequence], now_ns: int) -> list[RequestUpdate]:
        """Collects the deltas of sequences that got a token, and retires those that ended."""
        by_request: dict[str, list[Sequence]] = {}
        for sequence in sequences:
            by_request.setdefault(sequence.request_id, []).append(sequence)
        updates = []
        for request_id, members in by_request.items():
            leader = members[0].leader or members[0]
            deltas = []
            for sequence in members:
                if sequence.output.finish_reason is not None:
                    deltas.append(self._retire(sequence, now_ns))
                else:
                    deltas.append(sequence.output.take_delta(None, None))
            updates.append(
                RequestUpdate(
                    request_id=request_id,
                    deltas=deltas,
                    num_cached_tokens=leader.num_cached_tokens,
                    prompt_logprobs=members[0].output.take_prompt_logprobs(),
                    finished=request_id not in self._open,
                )
            )
        return updates

    def _retire(
        self, sequence: Sequence, now_ns: int, error: Exception | None = None
    ) -> SequenceDelta:
        self._scheduler.finish(sequence, now_ns)
        members = self._open[sequence.request_id]
        members.remove(sequence)
        if not members:
            del self._open[sequence.request_id]
            self._deadlines.discard(sequence.request_id)
        timings = sequence.clock.summary(sequence.num_output_tokens)
        return sequence.output.take_delta(timings, error)

    def _fail(self, rows: list[ScheduledSequence], failure: Exception) -> list[RequestUpdate]:
        """Ends every request that has one of these rows."""
        request_ids = {row.sequence.request_id: None for row in rows}
        return [self._end(r, failure) for r in request_ids if r in self._open]

    def _time_out(self, now_ns: int) -> list[RequestUpdate]:
        """Ends every request whose deadline has passed."""
        updates = []
        for request_id in self._deadlines.passed(now_ns):
            error = RequestTimeoutError("the request had not finished when its timeout ended")
            updates.append(self._end(request_id, error))
            self._num_timed_out_requests += 1
        return updates

    def _end(self, request_id: str, error: Exception) -> RequestUpdate:
        """Ends an open request with an error."""
        now_ns = time.monotonic_ns()
        deltas = []
        for sequence in list(self._open[request_id]):
            sequence.output.finish_reason = "error"
            deltas.append(self._retire(sequence, now_ns, error))
        return RequestUpdate(request_id, deltas, 0, prompt_logprobs=None, finished=True)


def _step_failure(batch: ScheduledBatch, error: Exception) -> StepFailedError:
    return StepFailedError(f"step {batch.step} failed: {error!r}")
