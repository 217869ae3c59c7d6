"""Pages of other origins: which of them browsers let use the server (CORS)."""

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from pyengine.server.context import OPTIONS

EXPOSED_HEADERS = "X-Request-Id, Retry-After"
MAX_AGE_S = "600"  # how long a browser may remember what it was told


@web.middleware
async def options_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers the method OPTIONS, with which browsers ask first, for every path there is."""
    refusal = request.match_info.http_exception
    if request.method != hdrs.METH_OPTIONS or not isinstance(refusal, web.HTTPMethodNotAllowed):
        return await handler(request)
    methods = ", ".join(sorted(refusal.allowed_methods))
    return web.Response(status=204, headers={hdrs.ALLOW: methods})


async def add_cors_headers(request: web.Request, response: web.StreamResponse) -> None:
    """A signal handler rather than a middleware: a stream sends its headers by itself."""
    allowed = request.app[OPTIONS].allowed_origins
    origin = request.headers.get(hdrs.ORIGIN)
    if not allowed or origin is None:
        return
    response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    if "*" not in allowed and origin not in allowed:
        return
    response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
    response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED_HEADERS
    if request.method == hdrs.METH_OPTIONS:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = response.headers.get(hdrs.ALLOW, "")
        wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS)
        if wanted is not None:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted
        response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = MAX_AGE_S
