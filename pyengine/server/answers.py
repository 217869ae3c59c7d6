"""The shapes of answers, which /openapi.json publishes. They are plain dicts, typed for the type
checker alone, since one is built for every token of a stream."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # that of the standard library won't do for pydantic

from pyengine.outputs import FinishReason, RequestTimings


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChoiceInfo(TypedDict):
    """What OpenAI's objects have no place for. `seed` replays this choice, with n = 1."""

    index: int
    seed: int
    timings: RequestTimings | None


class PyengineInfo(TypedDict):
    choices: list[ChoiceInfo]


class PromptLogprob(TypedDict):
    logprob: float
    rank: int  # 1 is the likeliest
    decoded_token: str


# For each token of a prompt but the first, what could have stood there, by token id as a string.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TextLogprobs(TypedDict):
    """Of a completion, an entry a token. None is for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]


class AnswerFunction(TypedDict):
    name: str
    arguments: str  # JSON


class AnswerToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: AnswerFunction


class FunctionPiece(TypedDict):
    name: NotRequired[str]
    arguments: str


class ToolCallPiece(TypedDict):
    """The first piece of a call has its id, its type and its function's name."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionPiece


class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None  # None beside calls alone
    tool_calls: NotRequired[list[AnswerToolCall]]


class Delta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCallPiece]]


class _Choice(TypedDict):
    """What all choices have; a chunk's finish_reason is None up to the last."""

    index: int
    finish_reason: FinishReason | Literal["tool_calls"] | None
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class CompletionChoice(_Choice):
    """One choice of a completion, or what a step added to it."""

    text: str
    logprobs: TextLogprobs | None
    prompt_token_ids: NotRequired[list[int]]  # in the first chunk
    prompt_logprobs: NotRequired[PromptLogprobs]


class ChatChoice(_Choice):
    message: AnswerMessage
    logprobs: ChatLogprobs | None


class ChatChunkChoice(_Choice):
    """What a step added to one choice of a chat."""

    delta: Delta
    logprobs: ChatLogprobs | None


ChunkChoice = CompletionChoice | ChatChunkChoice


class Head(TypedDict):
    """What an answer and its chunks have in common."""

    id: str
    created: int  # Unix time, in seconds
    model: str
    system_fingerprint: str  # changes only if the model's numbers can


class PromptReport(TypedDict):
    """What was asked for about the prompt of a chat completion."""

    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class ChunkExtra(PromptReport):
    """What some chunks of a stream have besides."""

    usage: NotRequired[Usage | None]
    pyengine: NotRequired[PyengineInfo]


class Completion(Head):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage
    pyengine: PyengineInfo


class CompletionChunk(Head, ChunkExtra):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatCompletion(Head, PromptReport):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    pyengine: PyengineInfo


class ChatCompletionChunk(Head, ChunkExtra):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int  # Unix time of the server's start, in seconds
    owned_by: str
    root: str
    max_model_len: int  # in tokens


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class Tokenized(TypedDict):
    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(TypedDict):
    prompt: str


class Health(TypedDict):
    status: Literal["ok"]


class Version(TypedDict):
    version: str
