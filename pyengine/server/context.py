"""What the handlers share: the keys of the app's parts."""

import asyncio
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
REQUEST_ID = web.RequestKey("request_id", str)  # the client's X-Request-Id, or one of our own
