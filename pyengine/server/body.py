"""What the bodies of all requests have in common, and how they are read.

They are strict: a field that pyengine doesn't know is refused by name rather than ignored (unless
the server was started with ignore_unknown_fields), one that it knows and hasn't got always is, and
a value of the wrong type isn't converted.
A field that is null counts as left out.
"""

import asyncio
import difflib
import time
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from pyengine.server.context import ARRIVAL_NS, IGNORED_FIELDS, OPTIONS, TEXT_EXECUTOR
from pyengine.server.errors import ApiError, from_validation_error

# Checking runs at some 50 bytes a microsecond at best, at one at worst: many small objects.
MAX_BYTES_ON_LOOP = 65_536
# Longer names of unknown fields are cut.
MAX_NAME_CHARS = 100


class Body(BaseModel):
    """A JSON object sent by a client."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    # Fields that clients know from elsewhere and that can't be had here: name -> why, or what to
    # do instead.
    unsupported: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _keep_known_fields(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        known = cls._names()
        for name in [name for name in given if name not in known]:
            if info.context is None or name in cls.unsupported:
                raise cls._complain_of(name)
            info.context.ignore(name)
            del given[name]
        return given

    @classmethod
    @cache
    def _names(cls) -> frozenset[str]:
        """Of the fields, as clients write them."""
        return frozenset(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def _complain_of(cls, name: str) -> PydanticCustomError:
        if name in cls.unsupported:
            context = {"name": name, "hint": cls.unsupported[name]}
            return PydanticCustomError("unsupported_field", "unsupported field", context)
        name = name[:MAX_NAME_CHARS]
        near = difflib.get_close_matches(name, sorted(cls._names()), n=1)
        hint = f"did you mean {near[0]}?" if near else ""
        return PydanticCustomError("unknown_field", "unknown field", {"name": name, "hint": hint})


BodyT = TypeVar("BodyT", bound=Body)


async def read_body(request: web.Request, kind: type[BodyT]) -> BodyT:
    """The request's JSON body.

    Raises:
        ApiError: 400, naming the field at fault if there is one; 408, the body takes too long to
            come; 415, it isn't announced as plain JSON.
    """
    if request.content_type != "application/json":
        raise ApiError(
            415,
            f"Content-Type must be application/json, got {request.content_type or 'none'}",
            code="unsupported_media_type",
        )
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding != "identity":
        raise ApiError(
            415,
            f"Content-Encoding must be left out, got {encoding}: bodies aren't unpacked",
            code="unsupported_media_type",
        )
    max_bytes = request.app[OPTIONS].max_body_bytes
    if (request.content_length or 0) > max_bytes:  # told before it has come
        raise web.HTTPRequestEntityTooLarge(max_bytes)
    limit_s = request.app[OPTIONS].body_timeout
    try:
        async with asyncio.timeout(limit_s):
            data = await request.read()
    except TimeoutError:
        raise ApiError(
            408,
            f"the body hasn't come within {limit_s:g} s",
            code="body_timeout",
            headers={"Connection": "close"},  # the rest may still come: nothing else can
        ) from None
    request[ARRIVAL_NS] = time.monotonic_ns()
    ignored = request.app.get(IGNORED_FIELDS)
    validate = partial(kind.model_validate_json, data, context=ignored)
    try:
        if len(data) <= MAX_BYTES_ON_LOOP:
            return validate()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(request.app[TEXT_EXECUTOR], validate)
    except ValidationError as error:
        raise from_validation_error(error) from None
