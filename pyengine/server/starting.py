"""What answers while the model is loaded."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from aiohttp import web

from pyengine.server.connection import ConnectionRunner
from pyengine.server.errors import RETRY_AFTER_S, ApiError, error_response


@contextmanager
def answer_starting(sock: socket.socket, tls: ssl.SSLContext | None) -> Iterator[None]:
    """Answers every request on `sock` with 503, from a thread of its own: loading keeps the main
    one, which Ctrl-C interrupts. The socket goes on listening afterwards, and who connects then
    waits for whoever serves next."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _refuse)
    runner = ConnectionRunner(app, shutdown_timeout=1.0)

    async def start() -> None:
        await runner.setup()
        await web.SockSite(runner, sock.dup(), ssl_context=tls).start()

    thread = Thread(target=loop.run_forever, name="pyengine-starting")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _refuse(request: web.Request) -> web.Response:
    headers = {"Retry-After": str(RETRY_AFTER_S), "Connection": "close"}
    error = ApiError(503, "the model is being loaded", code="starting", headers=headers)
    return error_response(error, request)
