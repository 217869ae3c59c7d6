"""The engine for an event loop: it steps in a thread of its own.

The only place where threads meet. Commands go to the engine's thread through one inbox; what a
step produced comes back in one call to the loop, while the next one is computed.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from pyengine.config import EngineConfig
from pyengine.engine.devices.device import StepLimits
from pyengine.engine.engine import Engine
from pyengine.engine.sequence import Request
from pyengine.engine.stats import EngineStats
from pyengine.errors import EngineStoppedError, QueueFullError, StepFailedError
from pyengine.models import ModelConfig
from pyengine.outputs import RequestUpdate
from pyengine.sampling_params import SamplingParams
from pyengine.text.chat_template import ChatTemplate
from pyengine.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# How long a shutdown waits for the step that runs; one that never ends must not hold the process.
_STOP_TIMEOUT_S = 10.0

_Command = Callable[[Engine], None]


class _Stop(Exception):
    """Ends the engine's thread."""


class UpdateStream:
    """The updates of the requests of one call, until they are taken. Lives on the event loop."""

    def __init__(self) -> None:
        self._updates: list[RequestUpdate] = []
        self._error: Exception | None = None
        self._has_news = asyncio.Event()

    def put(self, update: RequestUpdate) -> None:
        self._updates.append(update)
        self._has_news.set()

    def fail(self, error: Exception) -> None:
        """Nothing comes any more, for this reason."""
        self._error = error
        self._has_news.set()

    async def take(self) -> list[RequestUpdate]:
        """Waits until something came; returns all of it. After the last, raises what `fail` was
        told."""
        await self._has_news.wait()
        if self._error is None:
            self._has_news.clear()
        elif not self._updates:
            raise self._error
        taken, self._updates = self._updates, []
        return taken


class AsyncEngine:
    """Streams of updates for many concurrent requests. Owned by the event loop's thread; the
    engine that it is given belongs to its own thread once `start` was called."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._streams: dict[str, UpdateStream] = {}  # by id of an open request
        self._leaving: Counter[str] = Counter()  # aborts under way, by id of the request
        self._idle = asyncio.Event()
        self._idle.set()
        self._died = asyncio.Event()
        self._stats = engine.stats()
        self._num_submitted = 0  # sequences
        self._last_progress = time.monotonic()
        self._is_draining = False
        self._error: BaseException | None = None
        # What the last step produced, until it is handed over. Belongs to the engine's thread.
        self._news: tuple[list[RequestUpdate], EngineStats] | None = None
        self._thread = threading.Thread(target=self._run, name="pyengine-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def config(self) -> EngineConfig:
        return self._engine.config

    @property
    def limits(self) -> StepLimits:
        """How large its steps may be."""
        return self._engine.limits

    @property
    def model_config(self) -> ModelConfig:
        return self._engine.loaded.config

    @property
    def max_model_len(self) -> int:
        """The longest sequence that can be served, in tokens."""
        return self._engine.max_sequence_len

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.loaded.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._engine.loaded.chat_template

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The fields of SamplingParams that the model's makers gave values for."""
        return self._engine.loaded.sampling_defaults

    @property
    def fingerprint(self) -> str:
        """See loading.fingerprint."""
        return self._engine.loaded.fingerprint

    @property
    def error(self) -> BaseException | None:
        """The fault that the engine died of."""
        return self._error

    @property
    def is_running(self) -> bool:
        """New requests are taken."""
        return self._thread.is_alive() and self._error is None and not self._is_draining

    @property
    def stalled_s(self) -> float:
        """For how long no step has ended though requests are open, in seconds."""
        return time.monotonic() - self._last_progress if self._streams else 0.0

    def stats(self) -> EngineStats:
        """As of the end of the last step."""
        return self._stats

    def start(self) -> None:
        """Starts the engine's thread. Call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

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
        """See Engine.new_request."""
        return self._engine.new_request(
            request_id,
            prompt_token_ids,
            params,
            prompt=prompt,
            priority=priority,
            timeout_s=timeout_s,
            cache_salt=cache_salt,
            arrival_ns=arrival_ns,
        )

    async def generate(self, request: Request) -> AsyncGenerator[RequestUpdate, None]:
        """Runs a request; yields what each step added to it. As `generate_all` for one."""
        async with aclosing(self.generate_all([request])) as batches:
            async for updates in batches:
                for update in updates:
                    yield update

    async def generate_all(
        self, requests: Sequence[Request]
    ) -> AsyncGenerator[list[RequestUpdate], None]:
        """Runs requests; yields all that was added to any of them since the last time: what a step
        added, or several if the caller was slow. Closing the generator early aborts those that
        haven't finished and frees their blocks within a step.

        Raises:
            QueueFullError: too many sequences wait; none of the requests is run.
            EngineStoppedError: the engine doesn't run, or stops before the requests have finished.
            StepFailedError: the engine died while they ran.
            ValueError: a request of one of the ids is still open.
        """
        self._admit(requests)
        if not self._streams:
            self._last_progress = time.monotonic()
        stream = UpdateStream()
        for request in requests:
            self._streams[request.request_id] = stream
            self._num_submitted += request.params.n
            self._inbox.put(partial(Engine.add_request, request=request))
        self._idle.clear()
        unfinished = {request.request_id for request in requests}
        try:
            while unfinished:
                updates = await stream.take()
                unfinished.difference_update(u.request_id for u in updates if u.finished)
                yield updates
        finally:
            for request_id in unfinished:
                self._leave(request_id)
            self._close(requests)

    def abort(self, request_id: str) -> None:
        """Ends a request, wherever it is."""
        self._inbox.put(partial(Engine.abort_request, request_id=request_id))

    def _leave(self, request_id: str) -> None:
        """Aborts a request that nobody waits for any more. Until the engine has done so, updates of
        it may come: another request of this id must not get them."""

        def abort(engine: Engine) -> None:
            engine.abort_request(request_id)
            self._hand_over()
            self._call_loop(self._on_left, request_id)

        self._leaving[request_id] += 1
        self._inbox.put(abort)

    def _on_left(self, request_id: str) -> None:
        self._leaving[request_id] -= 1
        if not self._leaving[request_id]:
            del self._leaving[request_id]

    async def wait_died(self) -> None:
        """Returns once a fault has ended the engine, as `error` then tells."""
        await self._died.wait()

    async def shutdown(self, drain_timeout_s: float) -> None:
        """Takes no new requests, lets the open ones finish for so long, ends what is left with
        an EngineStoppedError, and stops the engine's thread. May be called again."""
        self._is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), drain_timeout_s)
        except TimeoutError:
            reason = f"the server stopped before the request finished ({drain_timeout_s:g} s)"
            for request_id, stream in self._streams.items():
                self.abort(request_id)
                stream.fail(EngineStoppedError(reason))

        def stop(engine: Engine) -> None:
            raise _Stop

        self._inbox.put(stop)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, _STOP_TIMEOUT_S)

    def _admit(self, requests: Sequence[Request]) -> None:
        request_ids = [request.request_id for request in requests]
        for index, request_id in enumerate(request_ids):
            if request_id in self._streams or request_id in request_ids[:index]:
                raise ValueError(f"request {request_id!r} is already open")
        if self._error is not None:
            raise EngineStoppedError(f"the engine has died: {self._error!r}")
        if self._is_draining:
            raise EngineStoppedError("the server is shutting down")
        stats = self._stats
        # Submitted but not yet seen by the engine: they wait too, unless they can start at once.
        num_waiting = stats.num_waiting + self._num_submitted - stats.num_accepted_sequences
        if stats.num_waiting == 0:
            num_waiting -= self._num_startable(requests)
        for request in requests:
            if num_waiting >= self.config.max_num_waiting:
                raise QueueFullError(
                    f"{self.config.max_num_waiting} sequences wait already (max_num_waiting): "
                    "try again later"
                )
            num_waiting += request.params.n

    def _num_startable(self, requests: Sequence[Request]) -> int:
        """At most how many sequences like these could start at once: for each there must be a
        place, and blocks for its prompt."""
        stats = self._stats
        num_tokens = min(len(request.prompt_token_ids) for request in requests)
        num_blocks = -(-num_tokens // self.config.block_size)
        num_free_blocks = stats.num_blocks - stats.num_used_blocks
        return min(self.limits.max_num_seqs - stats.num_running, num_free_blocks // num_blocks)

    def _close(self, requests: Sequence[Request]) -> None:
        for request in requests:
            del self._streams[request.request_id]
        if not self._streams:
            self._idle.set()

    def _run(self) -> None:
        """The engine's thread: commands, then a step, for as long as there is work."""
        engine = self._engine
        try:
            while True:
                if not engine.has_unfinished:
                    while self._inbox.empty() and engine.prepare():
                        pass
                    self._inbox.get()(engine)
                while not self._inbox.empty():
                    self._inbox.get()(engine)
                updates = engine.step(self._hand_over) if engine.has_unfinished else []
                self._hand_over()  # if no kernels ran
                self._news = updates, engine.stats()
                if not engine.has_unfinished:
                    self._hand_over()
        except _Stop:
            self._hand_over()
            self._call_loop(self._deliver, [], engine.stats())
        except BaseException as error:
            logger.exception("the engine has died")
            self._hand_over()
            self._call_loop(self._die, error)

    def _hand_over(self) -> None:
        """Gives the loop what the last step produced, if it hasn't got it yet.

        Best while kernels run, which need no GIL: between two steps the loop and the engine's
        thread would wait for each other. So a step hands over what came of the one before.
        """
        if self._news is not None:
            self._call_loop(self._deliver, *self._news)
            self._news = None

    def _call_loop(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        # A loop that was closed under us has nobody left to tell.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def _deliver(self, updates: list[RequestUpdate], stats: EngineStats) -> None:
        self._stats = stats
        self._last_progress = time.monotonic()
        for update in updates:
            stream = self._streams.get(update.request_id)
            # Else its client has gone.
            if stream is not None and update.request_id not in self._leaving:
                stream.put(update)

    def _die(self, error: BaseException) -> None:
        self._error = error
        self._died.set()
        for stream in self._streams.values():
            stream.fail(StepFailedError(f"the engine has died: {error!r}"))
