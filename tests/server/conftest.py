"""A real server on a loopback port, and real clients of it."""

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from pyengine.server.app import create_app
from pyengine.server.options import ServerOptions
from pyengine.server.serve import bind, make_runner
from tests.engine.test_async_engine import Gate
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine


@dataclass
class Server:
    url: str
    app: web.Application
    engine: Any
    http: aiohttp.ClientSession

    @cached_property
    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def close(self) -> None:
        await self.http.close()
        if "openai" in self.__dict__:
            await self.openai.close()

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        """-> status, JSON."""
        data = io.BytesIO(json.dumps(body).encode())  # aiohttp warns of long bodies in one piece
        headers = {"Content-Type": "application/json"}
        async with self.http.post(self.url + path, data=data, headers=headers) as response:
            return response.status, await response.json()

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """-> the events of a whole stream: JSON, or the text of one that isn't."""
        async with self.http.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            return read_events(await response.read())

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.json()


def read_events(data: bytes) -> list[Any]:
    """Parses whole server-sent events; "[DONE]" stays text."""
    *lines, rest = data.decode().split("\n\n")
    assert rest == "", "a stream ends with a whole event"
    texts = [line.removeprefix("data: ") for line in lines]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def check_error(body: Any, message: str, param: str | None = None, code: str | None = None) -> None:
    """The body is an error object, and nothing else."""
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert message in error["message"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


TIMEOUT = aiohttp.ClientTimeout(total=20)
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
            server = Server(url, app, engine, aiohttp.ClientSession(timeout=TIMEOUT))
            stack.push_async_callback(server.close)
            return server

        yield start


@pytest.fixture
async def gate(start_server: StartServer) -> AsyncIterator[Gate]:
    """For a real engine; opened at the end, lest a server wait for a step for ever."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
async def server(start_server: StartServer) -> Server:
    """A server of an engine that shouts the prompt back."""
    return await start_server(FakeAsyncEngine())
