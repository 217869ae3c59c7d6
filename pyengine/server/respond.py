"""Answers a call for generation, in one piece or as a stream, in the words of its endpoint."""

import json
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import aclosing

from aiohttp import web

from pyengine.outputs import CompletionOutput, SequenceDelta
from pyengine.sampling_params import SamplingParams
from pyengine.server.answers import Answer, Choice, Envelope
from pyengine.server.context import DRAINING, ENGINE, OPTIONS
from pyengine.server.errors import ApiError, to_api_error
from pyengine.server.generation import Generation
from pyengine.server.prompts import Prompt
from pyengine.server.protocol import GenerationBody
from pyengine.server.sse import DONE, ChunkEncoder, EventStream, encode_event


class Wording(ABC):
    """How an endpoint words choices. It may keep state for each, as one object serves one call."""

    id_prefix: str
    answer_object: str
    chunk_object: str

    @abstractmethod
    def choice(self, output: CompletionOutput) -> Choice:
        """A whole choice."""

    @abstractmethod
    def chunk(self, index: int, delta: SequenceDelta) -> Choice:
        """What a step added to a choice."""

    def opening(self, num_choices: int) -> list[Choice]:
        """What a stream begins with."""
        return []


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
        raise ApiError(503, "the server is shutting down", code="shutting_down")


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
    generation = Generation(request.app, call_id, prompts, params)
    envelope: Envelope = {
        "id": call_id,
        "object": wording.chunk_object if body.stream else wording.answer_object,
        "created": int(time.time()),
        "model": check_model(request.app, body.model),
        "system_fingerprint": request.app[ENGINE].fingerprint,
    }
    if body.stream:
        return await _stream(request, generation, wording, envelope, body.include_usage)
    return await _collect(generation, wording, envelope)


async def _collect(generation: Generation, wording: Wording, envelope: Envelope) -> web.Response:
    outputs = [CompletionOutput(index) for index in range(generation.num_choices)]
    async with aclosing(generation.steps()) as steps:
        async for step in steps:
            for index, delta in step:
                outputs[index].extend(delta)
    answer: Answer = {
        **envelope,
        "choices": [wording.choice(output) for output in outputs],
        "usage": generation.usage(),
        "pyengine": generation.info(),
    }
    text = json.dumps(answer, ensure_ascii=False)
    return web.Response(text=text, content_type="application/json")


async def _stream(
    request: web.Request,
    generation: Generation,
    wording: Wording,
    envelope: Envelope,
    include_usage: bool,
) -> web.StreamResponse:
    if include_usage:
        envelope = {**envelope, "usage": None}
    events = EventStream(request)
    chunks = ChunkEncoder(envelope)
    try:
        async with aclosing(generation.steps()) as steps:
            async for step in steps:
                choices = [] if events.is_started else wording.opening(generation.num_choices)
                choices += [
                    wording.chunk(index, delta) for index, delta in step if _has_news(delta)
                ]
                end = []
                if choices and generation.is_finished:
                    end = _last_events(generation, envelope, choices.pop(), include_usage)
                if choices or end:
                    await events.send([*map(chunks.encode, choices), *end])
    except ConnectionResetError:
        pass  # the client is gone, and the generation is closed
    except Exception as error:
        if not events.is_started:
            raise
        # The status is sent already. No [DONE] follows: it stands for success.
        await events.send([encode_event(to_api_error(error, request).body)])
    return events.response


def _last_events(
    generation: Generation, envelope: Envelope, choice: Choice, include_usage: bool
) -> list[bytes]:
    """What a stream ends with: its last choice, in a chunk that has more to tell than others."""
    last: Answer = {**envelope, "choices": [choice], "pyengine": generation.info()}
    events = [encode_event(last)]
    if include_usage:
        events.append(encode_event({**envelope, "choices": [], "usage": generation.usage()}))
    return [*events, DONE]


def _has_news(delta: SequenceDelta) -> bool:
    """Text may be held back by a stop string or an unfinished character."""
    return bool(delta.text or delta.logprobs or delta.finish_reason)
