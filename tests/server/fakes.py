"""An engine without a model: what it answers is written down, and it steps when a test says so."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from pyengine.config import EngineConfig
from pyengine.engine import EngineStats, Request
from pyengine.engine.async_engine import UpdateStream
from pyengine.engine.devices import CpuDevice
from pyengine.engine.output import SequenceOutput
from pyengine.engine.request_checks import check_request
from pyengine.errors import EngineStoppedError, QueueFullError, StepFailedError
from pyengine.outputs import RequestTimings, RequestUpdate, SequenceDelta, TokenLogprobs
from pyengine.sampling_params import SamplingParams
from pyengine.text.chat_template import ChatTemplate
from pyengine.text.tokenizer import Tokenizer, Vocabulary

BOS, EOS = 256, 257
VOCAB_SIZE = 258
MODEL_NAME = "fake/model"
CHAT_TEMPLATE = """
{{- tools | tojson if tools -}}
{%- for message in messages -%}
{%- if message.role == 'system' and not loop.first -%}
{{ raise_exception('only the first message may be of the system') }}
{%- endif -%}
[{{ message.role }}{{ ':' + message.name if message.name }}]{{ message.content }}
{{- message.tool_calls | tojson if message.tool_calls -}}
{%- endfor -%}
{%- if add_generation_prompt -%}[assistant]{%- endif -%}
"""
TIMINGS = RequestTimings(
    queue_wait_ms=1.0,
    time_to_first_token_ms=3.0,
    execution_ms=9.0,
    total_ms=10.0,
    decode_tokens_per_s=500.0,
    num_preemptions=1,
    num_recomputed_tokens=17,
    stalled_ms=4.0,
)

Script = Callable[[Request, int], Sequence[int]]


class ByteTokenizer(Tokenizer):
    """A token a byte, <s> and </s>."""

    def __init__(self) -> None:
        super().__init__(
            Vocabulary(
                token_bytes=[*(bytes([i]) for i in range(256)), b"<s>", b"</s>"],
                special_ids=frozenset({BOS, EOS}),
                bos_token_id=BOS,
                eos_token_ids=frozenset({EOS}),
                bos_token="<s>",
                eos_token="</s>",
                prefix_ids=[BOS],
                suffix_ids=[],
                has_space_prefix=False,
                chat_template=CHAT_TEMPLATE,
            )
        )

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        return list(text.encode())


def answer(*texts: str) -> Script:
    """Each of the request's sequences says its text in turn, then ends."""
    cycle = [[*text.encode(), EOS] for text in texts]
    return lambda request, index: cycle[index % len(cycle)]


def shout(request: Request, index: int) -> list[int]:
    """The prompt in capitals, with the sequence's number."""
    text = bytes(i for i in request.prompt_token_ids if i < 256).decode(errors="replace")
    return [*f"{index}{text.upper()}".encode(), EOS]


@dataclass
class _Open:
    """A request that hasn't finished."""

    request: Request
    num_cached_tokens: int
    outputs: dict[int, tuple[SequenceOutput, list[int]]]  # with the tokens still to come
    stream: UpdateStream  # of the call


class FakeAsyncEngine:
    """The face of AsyncEngine. A step adds one token to each of the oldest `max_num_seqs`
    sequences; it steps by itself unless held, else when `step` is called. A prompt that came
    before is cached but for its last token."""

    def __init__(
        self,
        script: Script = shout,
        *,
        held: bool = False,
        max_num_seqs: int = 64,
        max_num_waiting: int = 64,
        max_model_len: int = 4096,
        has_template: bool = True,
    ) -> None:
        self.config = EngineConfig(
            model="models/fake", max_num_seqs=max_num_seqs, max_num_waiting=max_num_waiting, seed=7
        )
        self.limits = CpuDevice().limits(self.config)
        self.max_model_len = max_model_len
        self.fingerprint = "fp_fake"
        self.sampling_defaults: dict[str, float] = {}
        self.tokenizer = ByteTokenizer()
        self.chat_template = (
            ChatTemplate(CHAT_TEMPLATE, bos_token="<s>", eos_token="</s>") if has_template else None
        )
        self.error: BaseException | None = None
        self.stalled_s = 0.0
        self.open: dict[str, _Open] = {}
        self.requests: list[Request] = []  # all that were admitted
        self.aborted: list[str] = []
        self.is_draining = False
        self._script = script
        self._held = held
        self._seeds = itertools.count(1000)
        self._has_work = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._died = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._num_generated_tokens = 0
        self._num_steps = 0

    @property
    def is_running(self) -> bool:
        return self._task is not None and self.error is None and not self.is_draining

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

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
        check_request(
            prompt_token_ids, params, max_sequence_len=self.max_model_len, vocab_size=VOCAB_SIZE
        )
        seed = next(self._seeds) if params.seed is None else params.seed
        return Request(
            request_id,
            prompt_token_ids,
            params,
            seed,
            prompt=prompt,
            priority=priority,
            timeout_s=timeout_s,
            cache_salt=cache_salt,
            arrival_ns=time.monotonic_ns() if arrival_ns is None else arrival_ns,
        )

    async def generate_all(
        self, requests: Sequence[Request]
    ) -> AsyncGenerator[list[RequestUpdate], None]:
        if self.error is not None or self.is_draining:
            raise EngineStoppedError("the engine has stopped")
        num_open = sum(len(entry.outputs) for entry in self.open.values())
        num_waiting = num_open - self.limits.max_num_seqs
        for request in requests:
            if num_waiting >= self.config.max_num_waiting:
                raise QueueFullError("too many requests wait: try again later")
            num_waiting += request.params.n
        stream = UpdateStream()
        for request in requests:
            self._open_request(request, stream)
        self._changed()
        unfinished = {request.request_id for request in requests}
        try:
            while unfinished:
                updates = await stream.take()
                unfinished -= {update.request_id for update in updates if update.finished}
                yield updates
        finally:
            for request in requests:
                if self.open.pop(request.request_id, None) is not None:
                    self.aborted.append(request.request_id)
            self._changed()

    async def wait_died(self) -> None:
        await self._died.wait()

    async def shutdown(self, drain_timeout_s: float) -> None:
        self.is_draining = True
        self._changed()
        try:
            await asyncio.wait_for(self._is_idle.wait(), drain_timeout_s)
        except TimeoutError:
            self._end_all(EngineStoppedError("the server stopped before the request finished"))
        if self._task is not None:
            self._task.cancel()

    def stats(self) -> EngineStats:
        num_sequences = sum(len(entry.outputs) for entry in self.open.values())
        num_running = min(num_sequences, self.limits.max_num_seqs)
        return EngineStats(
            num_waiting=num_sequences - num_running,
            num_running=num_running,
            num_blocks=8,
            num_used_blocks=min(8, num_running),
            num_accepted_requests=len(self.requests),
            num_accepted_sequences=sum(r.params.n for r in self.requests),
            num_prompt_tokens=sum(len(r.prompt_token_ids) for r in self.requests),
            num_generated_tokens=self._num_generated_tokens,
            num_prefix_queried_tokens=40,
            num_cached_tokens=30,
            num_recomputed_tokens=17,
            num_draft_tokens=50,
            num_accepted_draft_tokens=20,
            num_preemptions=2,
            num_aborted_requests=len(self.aborted),
            num_timed_out_requests=3,
            num_steps=self._num_steps,
        )

    # What tests do to it.

    def step(self) -> None:
        """One token for each running sequence."""
        self._num_steps += 1
        num_free = self.limits.max_num_seqs
        for entry in list(self.open.values()):
            running = list(entry.outputs)[:num_free]
            num_free -= len(running)
            if not running:
                continue
            first_output, _ = entry.outputs[running[0]]
            deltas = [self._advance(entry, index) for index in running]
            finished = not entry.outputs
            if finished:
                del self.open[entry.request.request_id]
            entry.stream.put(
                RequestUpdate(
                    entry.request.request_id,
                    deltas,
                    entry.num_cached_tokens,
                    first_output.take_prompt_logprobs(),
                    finished,
                )
            )
        self._changed()

    def fail_step(self) -> None:
        """The next step fails all open requests."""
        self._end_all(StepFailedError("step 7 failed: boom"))

    def die(self) -> None:
        self.error = RuntimeError("the roof fell in")
        self._died.set()
        self._end_all(StepFailedError("the engine has died: the roof fell in"))

    def release(self) -> None:
        """From now on it steps by itself."""
        self._held = False
        self._changed()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns once `condition` holds; it is tried whenever something has changed."""
        if not condition():
            future = asyncio.get_running_loop().create_future()
            self._watchers.append((condition, future))
            await asyncio.wait_for(future, 10)

    def _open_request(self, request: Request, stream: UpdateStream) -> None:
        seen = any(request.prompt_token_ids == r.prompt_token_ids for r in self.requests)
        params = request.params
        room = self.max_model_len - len(request.prompt_token_ids) + 1
        outputs = {
            k: (
                self._new_output(
                    k, request, room if params.max_tokens is None else params.max_tokens
                ),
                list(self._script(request, k)),
            )
            for k in range(params.n)
        }
        num_cached_tokens = len(request.prompt_token_ids) - 1 if seen else 0
        self.requests.append(request)
        self.open[request.request_id] = _Open(request, num_cached_tokens, outputs, stream)

    def _new_output(self, index: int, request: Request, max_tokens: int) -> SequenceOutput:
        output = SequenceOutput(index, request.params, self.tokenizer, max_tokens)
        num_top = request.params.prompt_logprobs
        if num_top is not None:
            output.extend_prompt_logprobs(
                [fake_logprobs(token_id, num_top) for token_id in request.prompt_token_ids[1:]]
            )
        return output

    def _advance(self, entry: _Open, index: int) -> SequenceDelta:
        output, tokens = entry.outputs[index]
        if output.finish_reason is None:
            token_id = tokens.pop(0) if tokens else EOS
            num_top = entry.request.params.logprobs
            logprobs = None if num_top is None else fake_logprobs(token_id, num_top)
            output.append(token_id, logprobs)
            self._num_generated_tokens += 1
        if output.finish_reason is None:
            return output.take_delta(None, None)
        del entry.outputs[index]
        return output.take_delta(TIMINGS, None)

    def _end_all(self, error: Exception) -> None:
        for entry in list(self.open.values()):
            del self.open[entry.request.request_id]
            entry.stream.fail(error)
        self._changed()

    def _changed(self) -> None:
        if self.open and not self._held:
            self._has_work.set()
        else:
            self._has_work.clear()
        if self.open:
            self._is_idle.clear()
        else:
            self._is_idle.set()
        for watcher in list(self._watchers):
            condition, future = watcher
            if condition():
                self._watchers.remove(watcher)
                future.set_result(None)

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            self.step()
            await asyncio.sleep(0)


def fake_logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    """The token's neighbours are the likeliest, itself the third."""
    top = [(token_id + shift) % 256 for shift in (1, 2, 0, 3, 4)][:num_top]
    values = [-0.25, -0.5, -1.0, -2.0, -4.0][:num_top]
    return TokenLogprobs(token_id, -1.0, 3, top, values)
