"""POST /v1/responses: the text form of OpenAI's Responses API."""

import itertools
import time
import uuid
from functools import partial
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BeforeValidator, Field, PlainValidator

from pyengine.outputs import CompletionOutput
from pyengine.sampling_params import SamplingParams
from pyengine.server.account import Metadata, NotStored
from pyengine.server.body import Body, read_body
from pyengine.server.errors import ApiError
from pyengine.server.generation import Generation
from pyengine.server.messages import Message
from pyengine.server.protocol import ChatBody
from pyengine.server.respond import check_accepting, check_model
from pyengine.server.response_objects import (
    Event,
    OutputItem,
    OutputText,
    Place,
    Response,
    Status,
)
from pyengine.server.single import SingleWording, new_generation, respond_single
from pyengine.server.sse import encode_typed_event
from pyengine.server.text_parts import parse_text

# What we don't have of the API -> what to do instead.
UNSUPPORTED_FIELDS = {
    "background": "answers aren't kept here",
    "conversation": "answers aren't kept here: send the conversation as input",
    "previous_response_id": "answers aren't kept here: send the conversation as input",
    "reasoning": "use /v1/chat/completions with chat_template_kwargs",
    "text": "use /v1/chat/completions with response_format",
    "tools": "use /v1/chat/completions",
    "tool_choice": "use /v1/chat/completions",
    "top_logprobs": "use /v1/chat/completions",
}
# The fields of chat completions that are called otherwise here.
NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}
_PARTS = {"input_text": (), "output_text": ("annotations", "logprobs")}


ItemContent = Annotated[
    str,
    PlainValidator(
        partial(parse_text, kinds=_PARTS), json_schema_input_type=str | list[dict[str, Any]]
    ),
]


class InputItem(Body):
    """A message. Those of answers may be sent back as they came."""

    role: Literal["system", "developer", "user", "assistant"]
    content: ItemContent
    type: Literal["message"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


def _parse_input(value: Any) -> Any:
    """A string is one message of the user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponsesBody(Body):
    unsupported = UNSUPPORTED_FIELDS

    input: Annotated[
        list[InputItem],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(_parse_input, json_schema_input_type=str | list[InputItem]),
    ]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    store: NotStored = False
    truncation: Literal["disabled"] = "disabled"
    # Taken for compatibility; nothing depends on these.
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = None

    def as_chat(self) -> ChatBody:
        messages = [Message(role=item.role, content=item.content) for item in self.input]
        if self.instructions is not None:
            messages.insert(0, Message(role="system", content=self.instructions))
        return ChatBody(
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
        )


class ResponseWording(SingleWording):
    def __init__(
        self,
        body: ResponsesBody,
        generation: Generation,
        params: SamplingParams,
        response_id: str,
        model: str,
    ) -> None:
        self._generation = generation
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._place: Place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._numbers = itertools.count()
        self._response: Response = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": params.top_p,
            "truncation": body.truncation,
            "usage": None,
            "user": body.user,
        }

    def answer(self, output: CompletionOutput) -> web.Response:
        return web.json_response(self._finished(output))

    def opening(self) -> list[bytes]:
        return _encode(
            {
                "type": "response.created",
                "sequence_number": next(self._numbers),
                "response": self._response,
            },
            {
                "type": "response.in_progress",
                "sequence_number": next(self._numbers),
                "response": self._response,
            },
            {
                "type": "response.output_item.added",
                "sequence_number": next(self._numbers),
                "output_index": 0,
                "item": self._item("in_progress", []),
            },
            {
                "type": "response.content_part.added",
                "sequence_number": next(self._numbers),
                **self._place,
                "part": _part(""),
            },
        )

    def text(self, text: str) -> list[bytes]:
        return _encode(
            {
                "type": "response.output_text.delta",
                "sequence_number": next(self._numbers),
                **self._place,
                "delta": text,
                "logprobs": [],
            }
        )

    def closing(self, output: CompletionOutput) -> list[bytes]:
        text = output.text
        response = self._finished(output)
        [item] = response["output"]
        is_cut = response["status"] == "incomplete"
        return _encode(
            {
                "type": "response.output_text.done",
                "sequence_number": next(self._numbers),
                **self._place,
                "text": text,
                "logprobs": [],
            },
            {
                "type": "response.content_part.done",
                "sequence_number": next(self._numbers),
                **self._place,
                "part": _part(text),
            },
            {
                "type": "response.output_item.done",
                "sequence_number": next(self._numbers),
                "output_index": 0,
                "item": item,
            },
            {
                "type": "response.incomplete" if is_cut else "response.completed",
                "sequence_number": next(self._numbers),
                "response": response,
            },
        )

    def failure(self, error: ApiError) -> list[bytes]:
        response = self._response.copy()
        response["status"] = "failed"
        response["error"] = {"code": "server_error", "message": error.message}
        return _encode(
            {
                "type": "response.failed",
                "sequence_number": next(self._numbers),
                "response": response,
            }
        )

    def _finished(self, output: CompletionOutput) -> Response:
        is_cut = output.finish_reason == "length"
        status: Status = "incomplete" if is_cut else "completed"
        usage = self._generation.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        response = self._response.copy()
        response["status"] = status
        response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        response["output"] = [self._item(status, [_part(output.text)])]
        response["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        return response

    def _item(self, status: Status, content: list[OutputText]) -> OutputItem:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }


async def create_response(request: web.Request) -> web.StreamResponse:
    check_accepting(request.app)
    body = await read_body(request, ResponsesBody)
    model = check_model(request.app, body.model)
    response_id = f"resp_{uuid.uuid4().hex}"
    generation, params = await new_generation(request, response_id, body.as_chat(), NAMES)
    wording = ResponseWording(body, generation, params, response_id, model)
    return await respond_single(request, generation, wording, stream=body.stream)


def _encode(*events: Event) -> list[bytes]:
    return [encode_typed_event(event) for event in events]


def _part(text: str) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
