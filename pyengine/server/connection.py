"""Connections that answer with the error object even to what isn't HTTP."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from pyengine.server.errors import ApiError, error_response

logger = logging.getLogger(__name__)


class Connection(RequestHandler):
    """aiohttp's side of one connection. What it can't parse reaches no application, and aiohttp
    would answer in plain text. It would also log a client that leaves while it is written to as a
    failure of the server."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionResetError):
            # The client is gone, and a handler noticed before aiohttp did.
            logger.debug("connection to %s lost: %s", request.remote, exc)
            raise exc
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        # aiohttp draws the bytes at fault below the first line.
        reason = (message or "").partition("\n")[0].rstrip(": ")
        logger.debug("malformed HTTP from %s", request.remote, exc_info=exc)
        error = ApiError(status, f"malformed HTTP: {reason}", code="malformed_http")
        response = error_response(error, request)
        response.force_close()
        return response


class ConnectionRunner(web.AppRunner):
    """A runner whose connections are of that kind."""

    @property
    def server(self) -> Callable[[], Connection] | None:  # type: ignore[override]
        """What sites make the protocol of a connection with."""
        manager = super().server
        if manager is None:
            return None
        no_log: Any = None  # which aiohttp takes, but doesn't declare
        return partial(
            Connection,
            manager,
            loop=asyncio.get_running_loop(),
            access_log=no_log,
            # A small body may hold gigabytes, and aiohttp would unpack it on the event loop, past
            # max_body_bytes too: it reads what is left of a body that was refused.
            auto_decompress=False,
        )
