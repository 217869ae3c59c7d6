"""API keys: who may use the model."""

import hmac

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from pyengine.server.context import OPTIONS
from pyengine.server.errors import ApiError

# What load balancers and monitors ask for, and what tells nothing of the model's answers.
OPEN_PATHS = frozenset(
    {"/health", "/ready", "/ping", "/metrics", "/version", "/openapi.json", "/docs"}
)


@web.middleware
async def auth_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Wants a key of the server's, if it has any, for all but OPEN_PATHS.

    Raises:
        ApiError: 401, the key is missing or wrong.
    """
    keys = request.app[OPTIONS].api_keys
    if keys and request.path not in OPEN_PATHS:
        _check_key(request, keys)
    return await handler(request)


def _check_key(request: web.Request, keys: tuple[str, ...]) -> None:
    given = _given_key(request)
    if given is None:
        raise _unauthorized("an API key is needed: send it as Authorization: Bearer KEY")
    given_bytes = given.encode(errors="surrogateescape")  # as it came: headers may hold any
    # All keys are compared, each in constant time: how long it takes tells nothing.
    if not sum([hmac.compare_digest(given_bytes, key.encode()) for key in keys]):
        raise _unauthorized("the API key is wrong")


def _given_key(request: web.Request) -> str | None:
    """From the header of OpenAI's clients, or else that of Anthropic's."""
    scheme, _, key = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("X-Api-Key")


def _unauthorized(message: str) -> ApiError:
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, message, code="invalid_api_key", headers=headers)
