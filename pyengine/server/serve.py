"""Runs the server: from the port to the drain."""

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from pyengine.engine import AsyncEngine
from pyengine.server.app import create_app
from pyengine.server.connection import ConnectionRunner
from pyengine.server.context import DRAINING
from pyengine.server.options import ServerOptions
from pyengine.server.starting import answer_starting

logger = logging.getLogger(__name__)

# How long handlers may take, once the engine has stopped, to send what they still hold. A client
# that doesn't read costs this twice: aiohttp waits for the handler, then for its cancellation.
LAST_WRITES_S = 2.5
BACKLOG = 1024
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def bind(options: ServerOptions) -> socket.socket:
    """Takes the port. Done before the model is loaded, so that a port in use is told at once.

    Raises:
        OSError: the address is in use, or not one of this machine; the message names it.
    """
    if options.uds is not None:
        return _bind_unix(options.uds)
    where = f"can't listen on host {options.host}, port {options.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise OSError(f"{where}: {error.strerror}; choose another host") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        other = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
        raise OSError(f"{where}: {error.strerror}; choose another {other}") from error
    return sock


def _bind_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_abandoned(path):
                raise
            os.unlink(path)  # a server that was killed left it
            sock.bind(path)
    except OSError as error:
        sock.close()
        raise OSError(f"can't listen on uds {path}: {error.strerror or error}") from error
    return sock


def _is_abandoned(path: str) -> bool:
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """What HTTPS needs, or None for HTTP.

    Raises:
        OSError: the certificate or the key can't be read, or don't fit; the message names them.
    """
    if options.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    except OSError as error:  # ssl.SSLError is one
        files = " and ".join(filter(None, (options.ssl_certfile, options.ssl_keyfile)))
        raise OSError(f"can't serve HTTPS with {files}: {error.strerror or error}") from error
    return context


def make_runner(app: web.Application) -> web.AppRunner:
    """A runner that cancels the handler of a client that goes away."""
    return ConnectionRunner(app, handler_cancellation=True, shutdown_timeout=LAST_WRITES_S)


def run(
    load_engine: Callable[[], AsyncEngine],
    options: ServerOptions,
    on_ready: Callable[[str], None],
) -> int:
    """Binds the port, loads the engine and answers 503 meanwhile, then serves until SIGTERM or
    SIGINT. The process should end then: it is deaf to these signals from here on.

    Args:
        load_engine: makes the engine, which is started here.
        on_ready: called with the server's URL once it answers.

    Returns:
        The exit status: 0, or 1 if the engine died.
    """
    tls = tls_context(options)
    with bind(options) as sock:
        with answer_starting(sock, tls):
            engine = load_engine()
        # Its loop takes less of the cores that the model is computed on.
        status = uvloop.run(serve(engine, options, sock, tls, on_ready))
    # Python takes a while to exit: a signal sent twice must not turn success into "killed".
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return status


async def serve(
    engine: AsyncEngine,
    options: ServerOptions,
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    on_ready: Callable[[str], None],
) -> int:
    """The part of `run` that lives on the event loop. At the signal newcomers are refused with 503
    and running requests go on for `options.shutdown_timeout`; what then still runs fails."""
    app = create_app(engine, options)
    runner = make_runner(app)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)  # a second signal changes nothing
    try:
        await runner.setup()
        await web.SockSite(runner, sock, backlog=BACKLOG, ssl_context=tls).start()
        on_ready(_url(sock, tls))
        await _first_of(stop.wait(), engine.wait_died())
        app[DRAINING].set()
        stats = engine.stats()
        logger.info(
            "shutting down: %d open sequences may go on for %g s",
            stats.num_running + stats.num_waiting,
            options.shutdown_timeout,
        )
        await engine.shutdown(options.shutdown_timeout)
    finally:
        await runner.cleanup()
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
        if options.uds is not None:
            os.unlink(options.uds)
    logger.info("the server has ended")
    return 0 if engine.error is None else 1


def _url(sock: socket.socket, tls: ssl.SSLContext | None) -> str:
    scheme = "http" if tls is None else "https"
    if sock.family == socket.AF_UNIX:
        return f"{scheme}://localhost"  # a client needs a name for its Host header
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Returns when one of `waits` has; cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
