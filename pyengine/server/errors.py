"""Every failure as OpenAI's error object: {"error": {message, type, param, code}}."""

import json
import logging
from collections.abc import Mapping
from typing import Literal

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from pyengine.errors import (
    ContextLengthError,
    EngineStoppedError,
    GrammarTooComplexError,
    InvalidRequestError,
    QueueFullError,
    RequestTimeoutError,
    StepFailedError,
)
from pyengine.server.context import REQUEST_ID_HEADER, request_id_of

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
# Where errors are Anthropic's.
ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CODES: dict[type[Exception], str] = {
    ContextLengthError: "context_length_exceeded",
    GrammarTooComplexError: "grammar_too_complex",
}


ErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]


# pydantic's names of limits -> ours.
_LENGTH_BOUNDS = {"min_length": "at least", "max_length": "at most"}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


class ErrorObject(TypedDict):
    message: str
    type: ErrorType
    param: str | None  # the field at fault
    code: str | None


class Error(TypedDict):
    """OpenAI's error object."""

    error: ErrorObject


class AnthropicErrorObject(TypedDict):
    type: str
    message: str


class AnthropicError(TypedDict):
    """Anthropic's."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str


class ApiError(Exception):
    """A failure in the words of the API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def body(self) -> Error:
        return {
            "error": {
                "message": self.message,
                "type": _type_of(self.status),
                "param": self.param,
                "code": self.code,
            }
        }


def to_api_error(error: Exception, request: web.Request) -> ApiError:
    """What the sender of `request` is told of `error`; a surprise is logged, not told."""
    request_id = request_id_of(request)
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            code = _CODES.get(type(error))
            return ApiError(400, str(error), param=error.param, code=code)
        case QueueFullError():
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            return ApiError(429, str(error), code="queue_full", headers=headers)
        case EngineStoppedError():
            return ApiError(503, str(error), code="engine_stopped")
        case RequestTimeoutError():
            return ApiError(504, str(error), param="timeout", code="timeout")
        case StepFailedError():
            return ApiError(500, f"{error} (request {request_id})", code="step_failed")
        case web.RequestPayloadError():
            return ApiError(400, f"the body can't be read: {error}")
        case web.HTTPException():
            return _from_http_exception(error, request)
        case _:
            logger.error("request %s failed", request_id, exc_info=error)
            return ApiError(500, f"internal error (request {request_id})", code="internal_error")


def renamed(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """The error, in the words of a body that calls some fields otherwise: ours -> its own."""
    param = error.param
    if param is None or param not in names:
        return error
    message = str(error)
    if message.startswith(param):
        message = names[param] + message.removeprefix(param)
    return type(error)(message, names[param])


def anthropic_error(error: ApiError, request_id: str) -> AnthropicError:
    default = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, default)
    told: AnthropicErrorObject = {"type": kind, "message": error.message}
    return {"type": "error", "error": told, "request_id": request_id}


def error_response(error: ApiError, request: web.BaseRequest) -> web.Response:
    """The answer to `request`, in the words of its API and with its id."""
    request_id = request_id_of(request)
    body: Error | AnthropicError = error.body
    if request.path == ANTHROPIC_PATH:
        body = anthropic_error(error, request_id)
    return web.Response(
        status=error.status,
        text=json.dumps(body, ensure_ascii=False),
        content_type="application/json",
        headers={**(error.headers or {}), REQUEST_ID_HEADER: request_id},
    )


def from_validation_error(error: ValidationError) -> ApiError:
    """The first of pydantic's complaints about a body, with the field at fault."""
    first = error.errors(include_url=False)[0]
    param = ""
    for part in first["loc"]:
        param += f"[{part}]" if isinstance(part, int) else f".{part}"
    param = param.removeprefix(".")
    match first["type"]:
        case "json_invalid":
            return ApiError(400, f"the body isn't valid JSON: {first['ctx']['error']}")
        case "model_type" if not param:
            got = _shorten(first["input"])
            return ApiError(400, f"the body must be a JSON object, got {got}")
        case "unknown_field" | "unsupported_field" as kind:
            param = f"{param}.{first['ctx']['name']}".removeprefix(".")
            hint = first["ctx"]["hint"]
            if kind == "unknown_field":
                message = f"unknown field: {param}" + (f"; {hint}" if hint else "")
                return ApiError(400, message, param=param, code="unknown_parameter")
            message = f"{param} isn't supported: {hint}"
            return ApiError(400, message, param=param, code="unsupported_parameter")
        case "missing_field":
            param = f"{param}.{first['ctx']['name']}"
            code = "missing_required_parameter"
            return ApiError(400, f"{param} is required", param=param, code=code)
        case "missing":
            code = "missing_required_parameter"
            return ApiError(400, f"{param} is required", param=param, code=code)
        case "value_error":
            return ApiError(400, f"{param}: {first['ctx']['error']}", param=param)
        case _:
            return ApiError(400, f"{param} {_expectation(first)}", param=param)


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers with the error object where a handler, the router or aiohttp raised."""
    try:
        return await handler(request)
    except ConnectionResetError:
        raise  # the client is gone: there is nobody to answer
    except Exception as error:
        return error_response(to_api_error(error, request), request)


def _from_http_exception(error: web.HTTPException, request: web.Request) -> ApiError:
    where = f"{request.method} {request.path}"
    match error:
        case web.HTTPNotFound():
            return ApiError(404, f"no such endpoint: {where}", code="not_found")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(
                405,
                f"{request.path} takes {allowed}, got {request.method}",
                code="method_not_allowed",
                headers={"Allow": allowed},
            )
        case web.HTTPRequestEntityTooLarge():
            return ApiError(413, f"the body is too large: {error.text}", code="body_too_large")
        case _:
            return ApiError(error.status, error.text or error.reason)


def _type_of(status: int) -> ErrorType:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _expectation(complaint: ErrorDetails) -> str:
    """What pydantic complains of, in our words."""
    value = complaint["input"]
    context = complaint.get("ctx", {})
    for bound, words in _LENGTH_BOUNDS.items():
        if (limit := context.get(bound)) is not None:
            unit = "character" if isinstance(value, str) else "item"
            return f"must have {words} {limit} {unit}{'s' * (limit != 1)}, got {len(value)}"
    for bound, words in _BOUNDS.items():
        if (limit := context.get(bound)) is not None:
            return f"must be {words} {limit}, got {_shorten(value)}"
    # "Input should be a valid integer", at times with what was got.
    wanted = complaint["msg"].partition(", got")[0].partition(" should ")[2]
    return f"must {wanted or 'be valid'}, got {_shorten(value)}"


def _shorten(value: object) -> str:
    """The beginning of a value as JSON, without writing out the rest: it may be megabytes."""
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += piece
        if len(text) > 60:
            return f"{text[:57]}..."
    return text
