"""What the handlers share: the keys of the app's parts, and the names of requests."""

import asyncio
import re
import uuid
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from pyengine.engine import AsyncEngine
from pyengine.server.ignored_fields import IgnoredFields
from pyengine.server.metrics import Metrics
from pyengine.server.options import ServerOptions

ENGINE = web.AppKey("engine", AsyncEngine)
OPTIONS = web.AppKey("options", ServerOptions)
METRICS = web.AppKey("metrics", Metrics)
DRAINING = web.AppKey("draining", asyncio.Event)  # set: newcomers are refused with 503
GRAMMAR_EXECUTOR = web.AppKey("grammar_executor", ThreadPoolExecutor)
TEXT_EXECUTOR = web.AppKey("text_executor", ThreadPoolExecutor)  # long texts are encoded here
IGNORED_FIELDS = web.AppKey("ignored_fields", IgnoredFields)  # there if they are ignored
CREATED = web.AppKey("created", int)  # Unix time of the start, in seconds

ARRIVAL_NS = web.RequestKey("arrival_ns", int)  # when the body was there, as time.monotonic_ns
REQUEST_ID_HEADER = "X-Request-Id"
_REQUEST_ID = web.RequestKey("request_id", str)
_REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id_of(request: web.BaseRequest) -> str:
    """The client's X-Request-Id, if it is a proper one, or one of our own. Made when it is first
    asked for, since what aiohttp refuses by itself meets no middleware."""
    if _REQUEST_ID not in request:
        given = request.headers.get(REQUEST_ID_HEADER, "")
        is_proper = _REQUEST_ID_PATTERN.fullmatch(given) is not None
        request[_REQUEST_ID] = given if is_proper else uuid.uuid4().hex
    return request[_REQUEST_ID]
