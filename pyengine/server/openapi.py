"""GET /openapi.json, made from the bodies, and GET /docs, a page that draws it."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from aiohttp import web

import pyengine
from pyengine.server.anthropic import MessagesBody
from pyengine.server.body import Body
from pyengine.server.errors import ANTHROPIC_PATH
from pyengine.server.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from pyengine.server.responses import ResponsesBody

Schema = dict[str, Any]

_REF = "#/components/schemas/{model}"
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_NULLABLE_TEXT: Schema = {"type": ["string", "null"]}


def _object(**properties: Schema) -> Schema:
    """An object that has all these, and maybe more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_MODEL = _object(
    id=_TEXT, object=_TEXT, created=_NUMBER, owned_by=_TEXT, root=_TEXT, max_model_len=_NUMBER
)
_ERROR = _object(
    error=_object(message=_TEXT, type=_TEXT, param=_NULLABLE_TEXT, code=_NULLABLE_TEXT)
)
_ANTHROPIC_ERROR = _object(type=_TEXT, error=_object(type=_TEXT, message=_TEXT), request_id=_TEXT)
_STATUS = _object(status=_TEXT)
_ANSWER = _object(
    id=_TEXT,
    object=_TEXT,
    created=_NUMBER,
    model=_TEXT,
    choices=_list({"type": "object"}),
    usage={"type": "object"},
)

# path -> body, answer, whether it may stream
_POSTS: Mapping[str, tuple[type[Body], Schema, bool]] = {
    "/v1/completions": (CompletionBody, _ANSWER, True),
    "/v1/chat/completions": (ChatBody, _ANSWER, True),
    "/v1/responses": (
        ResponsesBody,
        _object(id=_TEXT, object=_TEXT, status=_TEXT, output=_list({"type": "object"})),
        True,
    ),
    ANTHROPIC_PATH: (
        MessagesBody,
        _object(id=_TEXT, type=_TEXT, role=_TEXT, content=_list({"type": "object"})),
        True,
    ),
    "/tokenize": (
        TokenizeBody,
        _object(tokens=_list(_NUMBER), count=_NUMBER, max_model_len=_NUMBER),
        False,
    ),
    "/detokenize": (DetokenizeBody, _object(prompt=_TEXT), False),
}
_GETS: Mapping[str, Schema] = {
    "/v1/models": _object(object=_TEXT, data=_list(_MODEL)),
    "/v1/models/{model}": _MODEL,
    "/health": _STATUS,
    "/ready": _STATUS,
    "/ping": _STATUS,
    "/version": _object(version=_TEXT),
}
_GET_ERRORS = (401, 404, 500, 503)
_POST_ERRORS = (400, 401, 404, 408, 413, 415, 429, 500, 503, 504)


async def show_openapi(request: web.Request) -> web.Response:
    return web.json_response(describe_api())


async def show_docs(request: web.Request) -> web.Response:
    text = resources.files("pyengine.server").joinpath("docs.html").read_text()
    return web.Response(text=text, content_type="text/html")


@cache
def describe_api() -> dict[str, Any]:
    """The API as an OpenAPI 3.1 document."""
    schemas: dict[str, Schema] = {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    paths: dict[str, Any] = {}
    for path, (body, answer, streams) in _POSTS.items():
        schema = body.model_json_schema(ref_template=_REF)
        schemas |= schema.pop("$defs", {})
        schemas[body.__name__] = schema
        content = {"application/json": {"schema": _ref(body.__name__)}}
        paths[path] = {
            "post": {
                "operationId": _operation_id("post", path),
                "requestBody": {"required": True, "content": content},
                "responses": _responses(path, answer, _POST_ERRORS, streams),
            }
        }
    for path, answer in _GETS.items():
        paths[path] = {
            "get": {
                "operationId": _operation_id("get", path),
                "responses": _responses(path, answer, _GET_ERRORS, streams=False),
            }
        }
    name = {"name": "model", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}
    paths["/v1/models/{model}"]["get"]["parameters"] = [name]
    metrics = {"description": "Prometheus' text format", "content": {"text/plain": {}}}
    paths["/metrics"] = {"get": {"operationId": "get_metrics", "responses": {"200": metrics}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "pyengine", "version": pyengine.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _responses(path: str, answer: Schema, errors: tuple[int, ...], streams: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": answer}}
    if streams:
        content["text/event-stream"] = {}
    kind = "AnthropicError" if path == ANTHROPIC_PATH else "Error"
    error = {"description": "refused", "content": {"application/json": {"schema": _ref(kind)}}}
    return {"200": {"description": "done", "content": content}} | {
        str(status): error for status in errors
    }


def _ref(name: str) -> Schema:
    return {"$ref": _REF.format(model=name)}


def _operation_id(method: str, path: str) -> str:
    return "_".join([method, *path.replace("{", "").replace("}", "").strip("/").split("/")])
