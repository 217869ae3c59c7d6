"""Puts the application together: routes, middlewares, and the life of the engine."""

import time
from asyncio import Event
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

import pyengine
from pyengine.engine import AsyncEngine
from pyengine.server.answers import Health, ModelCard, ModelList, Version
from pyengine.server.anthropic import create_message
from pyengine.server.auth import auth_middleware
from pyengine.server.chat import create_chat_completion
from pyengine.server.completions import create_completion
from pyengine.server.context import (
    CREATED,
    DRAINING,
    ENGINE,
    GRAMMAR_EXECUTOR,
    IGNORED_FIELDS,
    METRICS,
    OPTIONS,
    REQUEST_ID_HEADER,
    TEXT_EXECUTOR,
    request_id_of,
)
from pyengine.server.cors import add_cors_headers, options_middleware
from pyengine.server.errors import ANTHROPIC_PATH, ApiError, error_middleware
from pyengine.server.ignored_fields import IgnoredFields
from pyengine.server.metrics import Metrics
from pyengine.server.openapi import show_docs, show_openapi
from pyengine.server.options import ServerOptions
from pyengine.server.respond import check_accepting, check_model
from pyengine.server.responses import create_response
from pyengine.server.tokenize import detokenize, tokenize

NUM_TEXT_THREADS = 2
CLIENT_CLOSED_REQUEST = 499  # nginx's number: there is no standard one


def create_app(engine: AsyncEngine, options: ServerOptions) -> web.Application:
    """An application that serves `engine`: starts it with itself, stops it at its end.

    Run it through `serve.make_runner`, which has aiohttp cancel the handlers of clients that go
    away.
    """
    app = web.Application(client_max_size=options.max_body_bytes, middlewares=MIDDLEWARES)
    app[ENGINE] = engine
    app[OPTIONS] = options
    app[METRICS] = Metrics(engine)
    app[DRAINING] = Event()
    app[CREATED] = int(time.time())
    if options.ignore_unknown_fields:
        app[IGNORED_FIELDS] = IgnoredFields()
    app.cleanup_ctx.extend([_run_text_executor, _run_engine])
    app.on_response_prepare.extend([_add_request_id, add_cors_headers])
    app.add_routes(
        [
            web.post("/v1/completions", create_completion),
            web.post("/v1/chat/completions", create_chat_completion),
            web.post("/v1/responses", create_response),
            web.post(ANTHROPIC_PATH, create_message),
            web.get("/v1/models", list_models),
            web.get("/v1/models/{model:.+}", show_model),
            web.post("/tokenize", tokenize),
            web.post("/detokenize", detokenize),
            web.post("/v1/embeddings", refuse_embeddings),
            web.get("/openapi.json", show_openapi),
            web.get("/docs", show_docs),
            web.get("/health", show_health),
            web.get("/ready", show_health),
            web.get("/ping", show_health),
            web.get("/metrics", show_metrics),
            web.get("/version", show_version),
        ]
    )
    return app


@web.middleware
async def observe_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Counts the answer to a request; that of a client which has gone, as 499."""
    resource = request.match_info.route.resource
    path = "unknown" if resource is None else resource.canonical
    status = CLIENT_CLOSED_REQUEST
    try:
        response = await handler(request)
        status = response.status
    finally:
        request.app[METRICS].observe_response(path, status)
    return response


MIDDLEWARES = (observe_middleware, error_middleware, options_middleware, auth_middleware)


async def list_models(request: web.Request) -> web.Response:
    names = request.app[OPTIONS].served_model_names
    models: ModelList = {
        "object": "list",
        "data": [_describe_model(request.app, name) for name in names],
    }
    return web.json_response(models)


async def show_model(request: web.Request) -> web.Response:
    name = check_model(request.app, request.match_info["model"])
    return web.json_response(_describe_model(request.app, name))


async def refuse_embeddings(request: web.Request) -> web.Response:
    name = request.app[OPTIONS].served_model_names[0]
    raise ApiError(
        404,
        f"{name} generates text: it isn't a model for embeddings",
        code="not_an_embedding_model",
    )


async def show_health(request: web.Request) -> web.Response:
    check_accepting(request.app)
    engine = request.app[ENGINE]
    if not engine.is_running:
        reason = "it was shut down" if engine.error is None else f"{engine.error}"
        raise ApiError(503, f"the engine doesn't run: {reason}", code="engine_stopped")
    if engine.stalled_s > request.app[OPTIONS].health_timeout:
        raise ApiError(
            503, f"no step has ended for {engine.stalled_s:.1f} s", code="engine_stalled"
        )
    health: Health = {"status": "ok"}
    return web.json_response(health)


async def show_metrics(request: web.Request) -> web.Response:
    body = request.app[METRICS].render()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def show_version(request: web.Request) -> web.Response:
    version: Version = {"version": pyengine.__version__}
    return web.json_response(version)


def _describe_model(app: web.Application, name: str) -> ModelCard:
    return {
        "id": name,
        "object": "model",
        "created": app[CREATED],
        "owned_by": "pyengine",
        "root": app[ENGINE].config.model,
        "max_model_len": app[ENGINE].max_model_len,
    }


async def _add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    response.headers[REQUEST_ID_HEADER] = request_id_of(request)


async def _run_text_executor(app: web.Application) -> AsyncIterator[None]:
    # Grammars have threads of their own: a bad one takes seconds, and texts would wait for it.
    grammars = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="pyengine-grammar")
    app[GRAMMAR_EXECUTOR] = grammars
    with ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="pyengine-text") as executor:
        app[TEXT_EXECUTOR] = executor
        yield
    grammars.shutdown(wait=False, cancel_futures=True)


async def _run_engine(app: web.Application) -> AsyncIterator[None]:
    engine = app[ENGINE]
    engine.start()
    yield
    await engine.shutdown(0.0)
