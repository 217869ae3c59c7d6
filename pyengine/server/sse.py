"""Server-sent events."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from pyengine.server.answers import Choice, Envelope

DONE = b"data: [DONE]\n\n"

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # asks nginx to pass events on at once
}


def encode_event(data: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(data)


class ChunkEncoder:
    """Events that have one choice each and all else in common, which is encoded but once.

    Args:
        envelope: what they have in common.
    """

    def __init__(self, envelope: Envelope) -> None:
        self._tail = b"]}\n\n"
        self._head = encode_event({**envelope, "choices": []}).removesuffix(self._tail)

    def encode(self, choice: Choice) -> bytes:
        return b"%b%b%b" % (self._head, to_json(choice), self._tail)


class EventStream:
    """The events of one response. Its headers go out with the first, so that whatever fails before
    can still be answered with a status."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=_HEADERS)

    @property
    def is_started(self) -> bool:
        return self.response.prepared

    async def send(self, events: Sequence[bytes]) -> None:
        """Sends events in one write."""
        if not self.is_started:
            await self.response.prepare(self._request)
        await self.response.write(b"".join(events))
