"""Every failure as OpenAI's error object: {"error": {message, type, param, code}}."""

import json
import logging
from collections.abc import Mapping
from typing import Literal

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import ValidationError
from typing_extensions import TypedDict

from pyengine.errors import (
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    RequestTimeoutError,
    StepFailedError,
)
from pyengine.server.context import REQUEST_ID

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


ErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]


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

    def response(self) -> web.Response:
        text = json.dumps(self.body, ensure_ascii=False)
        return web.Response(
            status=self.status,
            text=text,
            content_type="application/json",
            headers=self.headers,
        )


def to_api_error(error: Exception, request: web.Request) -> ApiError:
    """What the sender of `request` is told of `error`; a surprise is logged, not told."""
    request_id = request[REQUEST_ID]
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            return ApiError(400, str(error), param=error.param)
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


def anthropic_error(error: ApiError, request_id: str) -> AnthropicError:
    default = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, default)
    told: AnthropicErrorObject = {"type": kind, "message": error.message}
    return {"type": "error", "error": told, "request_id": request_id}


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
            expected = first["msg"].removeprefix("Input ")
            message = f"{param} {expected}, got {_shorten(first['input'])}"
            return ApiError(400, message, param=param)


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers with the error object where a handler, the router or aiohttp raised."""
    try:
        return await handler(request)
    except ConnectionResetError:
        raise  # the client is gone: there is nobody to answer
    except Exception as error:
        told = to_api_error(error, request)
        if request.path != ANTHROPIC_PATH:
            return told.response()
        body = anthropic_error(told, request[REQUEST_ID])
        return web.json_response(body, status=told.status, headers=told.headers)


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


def _shorten(value: object) -> str:
    """The beginning of a value as JSON, without writing out the rest: it may be megabytes."""
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += piece
        if len(text) > 60:
            return f"{text[:57]}..."
    return text
