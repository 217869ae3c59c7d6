"""The shapes of answers. They are plain dicts, typed for the type checker alone, since one is built
for every token of a stream."""

from typing import Any, Literal, NotRequired, TypedDict

from pyengine.outputs import FinishReason


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
    timings: dict[str, Any] | None  # outputs.RequestTimings


class PyengineInfo(TypedDict):
    choices: list[ChoiceInfo]


# For each token of a prompt but the first, what could have stood there: by token id as a string,
# {"logprob", "rank", "decoded_token"}.
PromptLogprobs = list[dict[str, dict[str, Any]] | None]


class PromptReport(TypedDict):
    """What was asked for about the prompt of a chat completion."""

    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Choice(TypedDict):
    """One choice, or what a step added to it. One of these is there: `text` in completions,
    `message` in chat completions, `delta` in the chunks of a chat stream."""

    index: int
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason | Literal["tool_calls"] | None
    stop_reason: str | int | None
    text: NotRequired[str]
    message: NotRequired[dict[str, Any]]
    delta: NotRequired[dict[str, Any]]
    token_ids: NotRequired[list[int]]
    # With the first chunk of a choice of a completion; chat has them in its answer.
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Envelope(TypedDict):
    """What the chunks of a stream have in common."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str  # changes only if the model's numbers can
    usage: NotRequired[Usage | None]


class ChunkExtra(PromptReport):
    """What some chunks of a stream have besides."""

    usage: NotRequired[Usage]
    pyengine: NotRequired[PyengineInfo]


class Answer(Envelope, PromptReport):
    """An answer, or the last chunk of one."""

    choices: list[Choice]
    pyengine: NotRequired[PyengineInfo]
