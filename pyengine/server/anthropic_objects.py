"""The shapes of the Messages API's answers and events, which /openapi.json publishes."""

from typing import Literal

from typing_extensions import TypedDict

from pyengine.server.errors import AnthropicError

StopReason = Literal["end_turn", "max_tokens", "stop_sequence"]


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class MessageUsage(TypedDict):
    input_tokens: int  # without the cached ones
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int


class Stop(TypedDict):
    """Why a message ended; both are None before it has."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class AnthropicAnswer(Stop):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock]
    usage: MessageUsage


class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: AnthropicAnswer


class ContentBlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: TextBlock


class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: str


class ContentBlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta


class ContentBlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class MessageDelta(TypedDict):
    type: Literal["message_delta"]
    delta: Stop
    usage: MessageUsage


class MessageStop(TypedDict):
    type: Literal["message_stop"]


Event = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)
