"""Answers a call for generation, in one piece or as a stream, in the words of its endpoint."""

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from pyengine.errors import RequestTimeoutError
from pyengine.outputs import CompletionOutput, SequenceDelta
from pyengine.sampling_params import SamplingParams
from pyengine.server.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    ChunkExtra,
    Completion,
    CompletionChunk,
    Head,
    PromptReport,
)
from pyengine.server.context import DRAINING, ENGINE, GRAMMAR_EXECUTOR, OPTIONS
from pyengine.server.errors import RETRY_AFTER_S, ApiError, to_api_error
from pyengine.server.generation import Generation, PromptOutput
from pyengine.server.prompts import Prompt, run_text_work
from pyengine.server.protocol import GenerationBody, StreamOptions
from pyengine.server.sse import DONE, ChunkEncoder, EventStream, encode_event


class Wording(ABC):
    """How an endpoint words choices. It may keep state for each, as one object serves one call."""

    id_prefix: str

    @abstractmethod
    def answer(
        self, head: Head, outputs: list[CompletionOutput], generation: Generation
    ) -> Completion | ChatCompletion:
        """The whole answer; `outputs` has all choices."""

    @abstractmethod
    def empty_chunk(self, head: Head, extra: ChunkExtra) -> CompletionChunk | ChatCompletionChunk:
        """A chunk without choices."""

    @abstractmethod
    def chunk(self, index: int, delta: SequenceDelta, prompt: PromptOutput) -> ChunkChoice | None:
        """What a step added to a choice; None if it is held back."""

    def opening(self, num_choices: int) -> Sequence[ChunkChoice]:
        """What a stream begins with."""
        return []

    def report(self, prompts: list[PromptOutput]) -> PromptReport:
        """What each chunk of `opening` tells of the prompts."""
        return {}


def check_model(app: web.Application, model: str | None) -> str:
    """The name to answer with, for the name that a client gave.

    Raises:
        ApiError: 404, the model isn't served here.
    """
    names = app[OPTIONS].served_model_names
    if model is not None and model not in names:
        raise ApiError(
            404,
            f"the model {model!r} isn't served here; try {', '.join(names)}",
            param="model",
            code="model_not_found",
        )
    return model or names[0]


def check_accepting(app: web.Application) -> None:
    """Raises ApiError (503) once the server is shutting down."""
    if app[DRAINING].is_set():
        headers = {"Retry-After": str(RETRY_AFTER_S)}  # another may take its place
        raise ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)


def sampling_defaults(app: web.Application) -> Mapping[str, Any]:
    """What requests have by default, where OpenAI's defaults don't hold."""
    return app[ENGINE].sampling_defaults if app[OPTIONS].generation_config == "auto" else {}


async def respond(
    request: web.Request,
    body: GenerationBody,
    prompts: list[Prompt],
    params: SamplingParams,
    wording: Wording,
) -> web.StreamResponse:
    """Runs the prompts through the engine. A client that goes away aborts them: aiohttp cancels
    the handler (see serve.make_runner), which closes the generation."""
    call_id = f"{wording.id_prefix}{uuid.uuid4().hex}"
    new_generation = partial(Generation, request, call_id, prompts, params, body)
    if params.grammar is None:
        generation = new_generation()
    else:
        generation = await _with_grammar(request.app, new_generation, body.timeout)
    head: Head = {
        "id": call_id,
        "created": int(time.time()),
        "model": check_model(request.app, body.model),
        "system_fingerprint": request.app[ENGINE].fingerprint,
    }
    if body.stream:
        return await _stream(request, generation, wording, head, body)
    return await _collect(request.app, generation, wording, head)


async def _with_grammar(
    app: web.Application, new_generation: Callable[[], Generation], timeout_s: float | None
) -> Generation:
    """Compiles a grammar, which takes a while, in a thread. One that takes too long goes on there
    without its client."""
    try:
        async with asyncio.timeout(timeout_s):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(app[GRAMMAR_EXECUTOR], new_generation)
    except TimeoutError:
        raise RequestTimeoutError("the grammar was not compiled when its timeout ended") from None


async def _collect(
    app: web.Application, generation: Generation, wording: Wording, head: Head
) -> web.Response:
    outputs = [CompletionOutput(index) for index in range(generation.num_choices)]
    async with aclosing(generation.steps()) as steps:
        async for step in steps:
            for index, delta in step:
                outputs[index].extend(delta)

    def encode() -> bytes:
        return to_json(wording.answer(head, outputs, generation))

    data = await run_text_work(app, generation.has_prompt_logprobs, encode)
    return web.Response(body=data, content_type="application/json", charset="utf-8")


async def _stream(
    request: web.Request,
    generation: Generation,
    wording: Wording,
    head: Head,
    body: GenerationBody,
) -> web.StreamResponse:
    events = EventStream(request)
    encoder = _StreamEncoder(generation, wording, head, body)
    try:
        async with aclosing(generation.steps()) as steps:
            async for step in steps:
                # The prompt's come with the first chunks.
                is_long = generation.has_prompt_logprobs and not events.is_started
                encode = partial(encoder.encode, step)
                if encoded := await run_text_work(request.app, is_long, encode):
                    await events.send(encoded)
    except ConnectionResetError:
        raise  # the client is gone, and the generation is closed
    except Exception as error:
        if not events.is_started:
            raise
        # The status is sent already. No [DONE] follows: it stands for success.
        await events.send([encode_event(to_api_error(error, request).body)])
    return events.response


class _StreamEncoder:
    """The events of one stream, step by step."""

    def __init__(
        self, generation: Generation, wording: Wording, head: Head, body: GenerationBody
    ) -> None:
        options = body.stream_options or StreamOptions()
        self._has_usage_in_all = options.continuous_usage_stats
        self._has_usage_at_end = options.include_usage
        self._has_token_ids = body.return_token_ids
        self._generation = generation
        self._wording = wording
        self._head = head
        has_null_usage = options.include_usage and not options.continuous_usage_stats
        extra: ChunkExtra = {"usage": None} if has_null_usage else {}
        self._chunks = ChunkEncoder(wording.empty_chunk(head, extra))
        self._is_opened = False

    def encode(self, step: list[tuple[int, SequenceDelta]]) -> list[bytes]:
        """What to send of a step; nothing if all of it is held back."""
        generation, wording = self._generation, self._wording
        choices = [
            choice
            for index, delta in step
            if self._has_news(delta)
            and (choice := wording.chunk(index, delta, generation.prompt_of(index)))
        ]
        if not choices:
            return []
        common: ChunkExtra = {"usage": generation.usage()} if self._has_usage_in_all else {}
        events = [] if self._is_opened else self._encode_opening(common)
        self._is_opened = True
        if not generation.is_finished:
            return events + [self._chunks.encode(choice, common) for choice in choices]
        # The last choice comes in a chunk that has more to tell than others.
        *others, last = choices
        events += [self._chunks.encode(choice, common) for choice in others]
        events.append(self._chunks.encode(last, {**common, "pyengine": generation.info()}))
        if self._has_usage_at_end:
            end = wording.empty_chunk(self._head, {"usage": generation.usage()})
            events.append(encode_event(end))
        return [*events, DONE]

    def _encode_opening(self, common: ChunkExtra) -> list[bytes]:
        extra: ChunkExtra = {**common, **self._wording.report(self._generation.prompts)}
        opening = self._wording.opening(self._generation.num_choices)
        return [self._chunks.encode(choice, extra) for choice in opening]

    def _has_news(self, delta: SequenceDelta) -> bool:
        """Text may be held back by a stop string or an unfinished character."""
        return bool(
            delta.text
            or delta.logprobs
            or delta.finish_reason
            or (self._has_token_ids and delta.token_ids)
        )
