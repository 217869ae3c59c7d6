"""POST /v1/messages: the text form of Anthropic's Messages API."""

import uuid
from functools import partial
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, PlainValidator

from pyengine.outputs import CompletionOutput
from pyengine.server.anthropic_objects import (
    AnthropicAnswer,
    Event,
    MessageUsage,
    Stop,
    TextBlock,
)
from pyengine.server.body import Body, read_body
from pyengine.server.context import request_id_of
from pyengine.server.errors import ApiError, anthropic_error
from pyengine.server.generation import Generation
from pyengine.server.messages import Message
from pyengine.server.protocol import ChatBody
from pyengine.server.respond import check_accepting, check_model
from pyengine.server.single import SingleWording, new_generation, respond_single
from pyengine.server.sse import encode_typed_event
from pyengine.server.text_parts import parse_text

# What we don't have of the API -> what to do instead.
UNSUPPORTED_FIELDS = {
    "thinking": "no thinking is told apart from the text",
    "tools": "use /v1/chat/completions",
    "tool_choice": "use /v1/chat/completions",
    "mcp_servers": "no tools run on this server",
    "container": "no tools run on this server",
}
# The fields of chat completions that are called otherwise here.
NAMES = {"prompt": "messages", "stop": "stop_sequences"}
# What a cache breakpoint asks for is done anyway, for every prefix.
_PARTS = {"text": ("cache_control",)}
AnthropicContent = Annotated[
    str,
    PlainValidator(
        partial(parse_text, kinds=_PARTS), json_schema_input_type=str | list[dict[str, Any]]
    ),
]


class AnthropicMessage(Body):
    role: Literal["user", "assistant"]
    content: AnthropicContent


class AnthropicMetadata(Body):
    user_id: str | None = None


class MessagesBody(Body):
    unsupported = UNSUPPORTED_FIELDS

    model: str
    max_tokens: Annotated[int, Field(ge=1)]
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, fail_fast=True)]
    system: AnthropicContent | None = None
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool = False
    # Taken for compatibility; nothing depends on these.
    metadata: AnthropicMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def as_chat(self) -> ChatBody:
        """A last message of the assistant's is the beginning of the answer."""
        messages = [Message(role=m.role, content=m.content) for m in self.messages]
        if self.system is not None:
            messages.insert(0, Message(role="system", content=self.system))
        return ChatBody(
            messages=messages,
            continue_final_message=self.messages[-1].role == "assistant",
            max_completion_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )


class MessageWording(SingleWording):
    def __init__(
        self, generation: Generation, message_id: str, model: str, request_id: str
    ) -> None:
        self._generation = generation
        self._message_id = message_id
        self._model = model
        self._request_id = request_id

    def answer(self, output: CompletionOutput) -> web.Response:
        content: list[TextBlock] = [{"type": "text", "text": output.text}]
        return web.json_response(self._message(content, _stop(output)))

    def opening(self) -> list[bytes]:
        message = self._message([], {"stop_reason": None, "stop_sequence": None})
        return [
            _event({"type": "message_start", "message": message}),
            _event(
                {
                    "type": "content_block_start",
                    "index": 0,
                    "content_block": {"type": "text", "text": ""},
                }
            ),
        ]

    def text(self, text: str) -> list[bytes]:
        return [
            _event(
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": text},
                }
            )
        ]

    def closing(self, output: CompletionOutput) -> list[bytes]:
        return [
            _event({"type": "content_block_stop", "index": 0}),
            _event({"type": "message_delta", "delta": _stop(output), "usage": self._usage()}),
            _event({"type": "message_stop"}),
        ]

    def failure(self, error: ApiError) -> list[bytes]:
        return [_event(anthropic_error(error, self._request_id))]

    def _message(self, content: list[TextBlock], stop: Stop) -> AnthropicAnswer:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **stop,
            "usage": self._usage(),
        }

    def _usage(self) -> MessageUsage:
        """Anthropic counts what was cached apart."""
        usage = self._generation.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage["completion_tokens"],
        }


async def create_message(request: web.Request) -> web.StreamResponse:
    check_accepting(request.app)
    body = await read_body(request, MessagesBody)
    model = check_model(request.app, body.model)
    message_id = f"msg_{uuid.uuid4().hex}"
    generation, _ = await new_generation(request, message_id, body.as_chat(), NAMES)
    wording = MessageWording(generation, message_id, model, request_id_of(request))
    return await respond_single(request, generation, wording, stream=body.stream)


def _event(event: Event) -> bytes:
    return encode_typed_event(event)


def _stop(output: CompletionOutput) -> Stop:
    """Why a message ended."""
    if isinstance(output.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_reason}
    is_cut = output.finish_reason == "length"
    return {"stop_reason": "max_tokens" if is_cut else "end_turn", "stop_sequence": None}
