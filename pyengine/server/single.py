"""Calls that end in one choice, for APIs that know no more: a chat completion underneath, worded
anew."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import aclosing

from aiohttp import web

from pyengine.errors import InvalidRequestError
from pyengine.outputs import CompletionOutput
from pyengine.sampling_params import SamplingParams
from pyengine.server.errors import ApiError, renamed, to_api_error
from pyengine.server.generation import Generation
from pyengine.server.prompts import encode_conversation
from pyengine.server.protocol import ChatBody
from pyengine.server.respond import sampling_defaults
from pyengine.server.sse import EventStream


class SingleWording(ABC):
    """How an API words one choice. It keeps state, as one object serves one call."""

    @abstractmethod
    def answer(self, output: CompletionOutput) -> web.Response:
        """The whole choice."""

    @abstractmethod
    def opening(self) -> list[bytes]:
        """The events that a stream begins with."""

    @abstractmethod
    def text(self, text: str) -> list[bytes]:
        """The events for some more text."""

    @abstractmethod
    def closing(self, output: CompletionOutput) -> list[bytes]:
        """The events that a stream ends with, for the whole choice."""

    @abstractmethod
    def failure(self, error: ApiError) -> list[bytes]:
        """The events that a stream ends with instead when it fails."""


async def new_generation(
    request: web.Request, call_id: str, body: ChatBody, names: Mapping[str, str]
) -> tuple[Generation, SamplingParams]:
    """What generates the answer to `body`.

    Args:
        names: of fields of `body` that the client knows by others: ours -> theirs.

    Raises:
        InvalidRequestError: a field can't be served; `param` is the client's name of it.
    """
    try:
        params = body.sampling_params(sampling_defaults(request.app))
        prompt = await encode_conversation(request.app, body.conversation(body.messages))
        return Generation(request, call_id, [prompt], params, body), params
    except InvalidRequestError as error:
        raise renamed(error, names) from None


async def respond_single(
    request: web.Request, generation: Generation, wording: SingleWording, *, stream: bool
) -> web.StreamResponse:
    """Runs the generation. A client that goes away aborts it, as in respond.respond."""
    output = CompletionOutput(0)
    events = EventStream(request)
    try:
        async with aclosing(generation.steps()) as steps:
            async for step in steps:
                for _, delta in step:
                    output.extend(delta)
                text = "".join(delta.text for _, delta in step)
                if stream and (text or generation.is_finished):
                    encoded = [] if events.is_started else wording.opening()
                    encoded += wording.text(text) if text else []
                    encoded += wording.closing(output) if generation.is_finished else []
                    await events.send(encoded)
    except ConnectionResetError:
        raise  # the client is gone, and the generation is closed
    except Exception as error:
        if not events.is_started:
            raise
        await events.send(wording.failure(to_api_error(error, request)))
    return events.response if stream else wording.answer(output)
