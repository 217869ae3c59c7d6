"""The shapes of the Responses API's answers and events, which /openapi.json publishes."""

from typing import Any, Literal

from typing_extensions import TypedDict

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputItem(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    code: Literal["server_error"]
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class Reasoning(TypedDict):
    effort: None
    summary: None


class TextFormat(TypedDict):
    type: Literal["text"]


class TextOptions(TypedDict):
    format: TextFormat


class Response(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int  # Unix time, in seconds
    status: Status
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: Reasoning
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: Literal["auto"]
    tools: list[Any]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None


class _Numbered(TypedDict):
    sequence_number: int  # 0 for the first of a stream


class ResponseEvent(_Numbered):
    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemEvent(_Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class Place(TypedDict):
    """Of a part of an item."""

    item_id: str
    output_index: int
    content_index: int


class ContentPartEvent(_Numbered, Place):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText


class TextDeltaEvent(_Numbered, Place):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[Any]


class TextDoneEvent(_Numbered, Place):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[Any]


Event = ResponseEvent | ItemEvent | ContentPartEvent | TextDeltaEvent | TextDoneEvent
