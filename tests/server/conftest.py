"""A real server on a loopback port, and real clients of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from pyengine.server.app import create_app
from pyengine.server.options import ServerOptions
from pyengine.server.serve import bind, make_runner
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine


@dataclass
class Server:
    url: str
    app: web.Application
    engine: Any
    http: aiohttp.ClientSession
    openai: openai.AsyncOpenAI

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        """-> status, JSON."""
        async with self.http.post(self.url + path, json=body) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.json()


StartServer = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """Starts a server of an engine; the keyword arguments are ServerOptions'."""
    async with AsyncExitStack() as stack:

        async def start(engine: Any, **options: Any) -> Server:
            options = {"served_model_names": (MODEL_NAME, "alias"), "port": 0, **options}
            server_options = ServerOptions(**options)
            app = create_app(engine, server_options)
            sock = stack.enter_context(bind(server_options))
            runner = make_runner(app)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.SockSite(runner, sock).start()
            url = "http://{}:{}".format(*sock.getsockname())
            http = await stack.enter_async_context(aiohttp.ClientSession())
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            await stack.enter_async_context(client)
            return Server(url, app, engine, http, client)

        yield start


@pytest.fixture
async def server(start_server: StartServer) -> Server:
    """A server of an engine that shouts the prompt back."""
    return await start_server(FakeAsyncEngine())
