"""The bodies of the endpoints' requests."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from pyengine.sampling_params import MAX_LOGPROBS, SamplingParams
from pyengine.server.account import AccountBody
from pyengine.server.body import Body
from pyengine.server.errors import ApiError
from pyengine.server.messages import ConversationBody, Messages
from pyengine.server.structured_fields import StructuredFields

MAX_TIMEOUT_S = 1e9
MAX_CACHE_SALT_CHARS = 256

_TOKEN_ID_PATTERN = re.compile(r"0|[1-9][0-9]{0,9}")
_SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplingParams))


def _parse_prompts(value: Any) -> list[str] | list[list[int]]:
    """One prompt or several, as text or token ids -> several. Written out since a union would
    try each type in turn on lists of hundreds of thousands of ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        kinds = set(map(type, value))
        if kinds == {str}:
            return value
        if kinds == {int}:
            return [value]
        if kinds == {list} and all(set(map(type, ids)) == {int} for ids in value):
            return value
    raise ValueError(
        "must be a string, a list of strings, a list of token ids, or a list of such lists, "
        "none of them empty"
    )


def _check_truncation(num_tokens: int) -> int:
    if num_tokens != -1 and num_tokens < 1:
        raise ValueError(f"must be at least 1, or -1, got {num_tokens}")
    return num_tokens


def _parse_logit_bias(value: Any) -> dict[int, float]:
    """An object of token ids, spelled as strings, to numbers."""
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids to numbers")
    biases = {}
    for key, bias in value.items():
        if not _TOKEN_ID_PATTERN.fullmatch(key):
            raise ValueError(f"the keys must be token ids, got {key[:20]!r}")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ValueError(f"the values must be numbers, got one that isn't for {key!r}")
        biases[int(key)] = bias
    return biases


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Prompts = Annotated[
    list[str] | list[list[int]],
    PlainValidator(
        _parse_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
    ),
]
LogitBias = Annotated[
    dict[int, float], PlainValidator(_parse_logit_bias, json_schema_input_type=dict[str, float])
]
# One complaint about a list is enough: a list may be long.
Strings = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False

    @model_validator(mode="after")
    def _check_usage(self) -> "StreamOptions":
        if self.continuous_usage_stats and not self.include_usage:
            raise ApiError(
                400,
                "continuous_usage_stats needs include_usage: true",
                param="stream_options.continuous_usage_stats",
            )
        return self


# vLLM's, which would change the answer -> what to do instead.
_UNSUPPORTED_SAMPLING = {
    "allowed_token_ids": "use a grammar, or logit_bias",
    "bad_words": "use logit_bias",
    "use_beam_search": "sample n choices",
}


class GenerationBody(StructuredFields):
    """The fields that both ways to generate share. Defaults and ranges are SamplingParams'."""

    unsupported: ClassVar = {**StructuredFields.unsupported, **_UNSUPPORTED_SAMPLING}

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: LogitBias | None = None
    seed: int | None = None
    stop: Annotated[Strings | None, BeforeValidator(_listed)] = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, AfterValidator(_check_truncation)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_token_ids: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARS)] | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None  # seconds
    user: str | None = None  # taken for compatibility; nothing depends on it

    @property
    def reports_prompt(self) -> bool:
        """Whether the answer is about the prompt too, so that there need be no token after it."""
        return self.prompt_logprobs is not None

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        return SamplingParams(**self._sampling_fields(defaults))

    def _sampling_fields(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.model_fields_set & _SAMPLING_FIELDS}
        return {**defaults, **given, "grammar": self.grammar()}

    @model_validator(mode="after")
    def _check_stream_options(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options")
        return self

    @model_validator(mode="after")
    def _check_prompt_options(self) -> "GenerationBody":
        if self.stream and self.prompt_logprobs is not None:
            raise ApiError(400, "prompt_logprobs needs stream: false", param="prompt_logprobs")
        if self.max_tokens == 0 and not self.reports_prompt:
            raise ApiError(
                400,
                "max_tokens must be at least 1, got 0, unless prompt_logprobs or the echo of a "
                "completion asks for the prompt",
                param="max_tokens",
            )
        return self


class CompletionBody(GenerationBody):
    unsupported: ClassVar = {
        **GenerationBody.unsupported,
        "max_completion_tokens": "use max_tokens",
        "suffix": "the prompt is continued, not filled in",
    }

    prompt: Prompts
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None

    @property
    def reports_prompt(self) -> bool:
        return self.echo or super().reports_prompt

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        given = self._sampling_fields(defaults)
        if self.echo and self.logprobs is not None:
            # Either report takes its part of the larger.
            given["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return SamplingParams(**given)

    @model_validator(mode="after")
    def _check_best_of(self) -> "CompletionBody":
        n = 1 if self.n is None else self.n
        if self.best_of is not None and self.best_of != n:
            raise ApiError(
                400,
                f"best_of must equal n ({n}), got {self.best_of}: choices are not ranked",
                param="best_of",
            )
        return self


class ChatBody(ConversationBody, AccountBody, GenerationBody):
    unsupported: ClassVar = {**AccountBody.unsupported, **GenerationBody.unsupported}

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def names(self) -> dict[str, str]:
        """What the client calls fields that the engine calls otherwise."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"prompt": "messages", "max_tokens": limit}

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        given = self._sampling_fields(defaults)
        limit = self.max_completion_tokens
        given["max_tokens"] = self.max_tokens if limit is None else limit  # None: all that fit
        given["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
        return SamplingParams(**given)

    @model_validator(mode="after")
    def _check_pairs(self) -> "ChatBody":
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(
                400,
                "max_tokens and max_completion_tokens mean the same: give one of them",
                param="max_tokens",
            )
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        return self


_PROMPT_FIELDS = ("add_special_tokens",)


class TokenizeBody(ConversationBody):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True  # of a prompt; a chat template writes its own

    @model_validator(mode="after")
    def _check_one_input(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        for_other = ConversationBody.model_fields if self.messages is None else _PROMPT_FIELDS
        if useless := sorted(self.model_fields_set.intersection(for_other)):
            other = "messages" if self.messages is None else "prompt"
            raise ApiError(400, f"{useless[0]} goes with {other} only", param=useless[0])
        return self


class DetokenizeBody(Body):
    model: str | None = None
    tokens: TokenIds
