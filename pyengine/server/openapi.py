"""GET /openapi.json, made from the bodies, and GET /docs, a page that draws it."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

from aiohttp import web
from pydantic import TypeAdapter

import pyengine
from pyengine.server import anthropic_objects, response_objects
from pyengine.server.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    Detokenized,
    Health,
    ModelCard,
    ModelList,
    Tokenized,
    Version,
)
from pyengine.server.anthropic import MessagesBody
from pyengine.server.errors import ANTHROPIC_PATH, AnthropicError, Error
from pyengine.server.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from pyengine.server.responses import ResponsesBody

Schema = dict[str, Any]

_REF = "#/components/schemas/{model}"


class _Post(NamedTuple):
    body: Any
    answer: Any
    event: Any = None  # what the data of each event of a stream is, where there are streams


# path -> types
_POSTS: Mapping[str, _Post] = {
    "/v1/completions": _Post(CompletionBody, Completion, CompletionChunk | Error),
    "/v1/chat/completions": _Post(ChatBody, ChatCompletion, ChatCompletionChunk | Error),
    "/v1/responses": _Post(ResponsesBody, response_objects.Response, response_objects.Event),
    ANTHROPIC_PATH: _Post(MessagesBody, anthropic_objects.AnthropicAnswer, anthropic_objects.Event),
    "/tokenize": _Post(TokenizeBody, Tokenized),
    "/detokenize": _Post(DetokenizeBody, Detokenized),
}
_GETS: Mapping[str, Any] = {
    "/v1/models": ModelList,
    "/v1/models/{model}": ModelCard,
    "/health": Health,
    "/ready": Health,
    "/ping": Health,
    "/version": Version,
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
    """The API as an OpenAPI 3.1 document. The schema of a stream is that of each of its events, as
    3.1 knows none for the whole."""
    schemas, components = _schemas()
    paths: dict[str, Any] = {}
    for path, post in _POSTS.items():
        content = {"application/json": {"schema": schemas[post.body]}}
        answers = {"application/json": {"schema": schemas[post.answer]}}
        if post.event is not None:
            answers["text/event-stream"] = {"schema": _event_schema(schemas[post.event])}
        error = schemas[AnthropicError if path == ANTHROPIC_PATH else Error]
        paths[path] = {
            "post": {
                "operationId": _operation_id("post", path),
                "requestBody": {"required": True, "content": content},
                "responses": _responses(answers, error, _POST_ERRORS),
            }
        }
    for path, answer in _GETS.items():
        answers = {"application/json": {"schema": schemas[answer]}}
        paths[path] = {
            "get": {
                "operationId": _operation_id("get", path),
                "responses": _responses(answers, schemas[Error], _GET_ERRORS),
            }
        }
    text = {"type": "string", "minLength": 1}
    name = {"name": "model", "in": "path", "required": True, "schema": text}
    paths["/v1/models/{model}"]["get"]["parameters"] = [name]
    metrics = {"description": "Prometheus' text format", "content": {"text/plain": {}}}
    paths["/metrics"] = {"get": {"operationId": "get_metrics", "responses": {"200": metrics}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "pyengine", "version": pyengine.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _schemas() -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """-> the schema of each type, mostly a reference, and what is referred to."""
    kinds = {AnthropicError, Error, *_GETS.values()}.union(*_POSTS.values()) - {None}
    mode: Literal["validation"] = "validation"
    inputs = [(kind, mode, TypeAdapter(kind)) for kind in kinds]
    schemas, rest = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    return {kind: schema for (kind, _), schema in schemas.items()}, rest["$defs"]


def _event_schema(data: Schema) -> Schema:
    """Of events whose data is JSON, or tells the end of the stream."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    done = {"const": "[DONE]"}
    return {
        "type": "object",
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [done, text]}},
        "required": ["data"],
    }


def _responses(answers: dict[str, Any], error: Schema, statuses: tuple[int, ...]) -> dict[str, Any]:
    refused = {"description": "refused", "content": {"application/json": {"schema": error}}}
    return {
        "200": {"description": "done", "content": answers},
        **{str(status): refused for status in statuses},
    }


def _operation_id(method: str, path: str) -> str:
    return "_".join([method, *path.replace("{", "").replace("}", "").strip("/").split("/")])
