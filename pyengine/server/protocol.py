"""The bodies of requests, checked.

They are strict: a field that pyengine doesn't know is refused by name rather than ignored, and a
value of the wrong type isn't converted. A field that is null counts as left out.
"""

import asyncio
import re
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from aiohttp import web
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from pyengine.sampling_params import MAX_LOGPROBS, SamplingParams
from pyengine.server.context import TEXT_EXECUTOR
from pyengine.server.errors import ApiError, from_validation_error

# Checking runs at some 50 bytes a microsecond at best, at one at worst: many small objects.
MAX_BYTES_ON_LOOP = 65_536

_TOKEN_ID_PATTERN = re.compile(r"0|[1-9][0-9]{0,9}")
_SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplingParams))


class Body(BaseModel):
    """A JSON object sent by a client."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None}


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


def _parse_content(value: Any) -> str:
    """A string, or a list of text parts -> the text; parts are joined by line ends."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"part {index} must be an object with a type")
        if part["type"] != "text":
            raise ValueError(f"part {index} is of type {part['type']!r}; only 'text' is supported")
        if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError(f"part {index} must hold a type and a text, and nothing else")
        texts.append(part["text"])
    return "\n".join(texts)


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


Prompts = Annotated[list[str] | list[list[int]], PlainValidator(_parse_prompts)]
LogitBias = Annotated[
    dict[int, float], PlainValidator(_parse_logit_bias, json_schema_input_type=dict[str, float])
]
Content = Annotated[str, PlainValidator(_parse_content)]
# One complaint about a list is enough: a list may be long.
Strings = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """As chat templates expect it: they know the developer by the older name."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content}
        if self.name is not None:
            message["name"] = self.name
        return message


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class StreamOptions(Body):
    include_usage: bool = False


class GenerationBody(Body):
    """The fields that both ways to generate share. Defaults and ranges are SamplingParams'."""

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
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None  # taken for compatibility; nothing depends on it

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling_params(self) -> SamplingParams:
        return SamplingParams(**self._given_sampling_fields())

    def _given_sampling_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set & _SAMPLING_FIELDS}

    @model_validator(mode="after")
    def _check_stream_options(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options")
        return self


class CompletionBody(GenerationBody):
    prompt: Prompts
    logprobs: int | None = None


class ChatBody(GenerationBody):
    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    def sampling_params(self) -> SamplingParams:
        given = self._given_sampling_fields()
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
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        return self


class TokenizeBody(Body):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True  # of a prompt; a chat template writes its own
    add_generation_prompt: bool = True  # of messages

    @model_validator(mode="after")
    def _check_one_input(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        return self


class DetokenizeBody(Body):
    model: str | None = None
    tokens: TokenIds


BodyT = TypeVar("BodyT", bound=Body)


async def read_body(request: web.Request, kind: type[BodyT]) -> BodyT:
    """The request's JSON body.

    Raises:
        ApiError: 400, naming the field at fault if there is one.
    """
    if request.content_type != "application/json":
        raise ApiError(
            400, f"Content-Type must be application/json, got {request.content_type or 'none'}"
        )
    data = await request.read()
    validate = partial(kind.model_validate_json, data)
    try:
        if len(data) <= MAX_BYTES_ON_LOOP:
            return validate()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(request.app[TEXT_EXECUTOR], validate)
    except ValidationError as error:
        raise from_validation_error(error) from None
