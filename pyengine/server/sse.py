"""Server-sent events."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from pyengine.server.answers import ChatCompletionChunk, ChunkChoice, CompletionChunk

_NOTHING: Mapping[str, Any] = MappingProxyType({})
DONE = b"data: [DONE]\n\n"

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # asks nginx to pass events on at once
}


def encode_event(data: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(data)


def encode_typed_event(data: Mapping[str, Any]) -> bytes:
    """An event that is named as its data's type."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), to_json(data))


class ChunkEncoder:
    """Events that have one choice each and most else in common, which is encoded but once.

    Args:
        empty: one without choices: what they have in common.
    """

    def __init__(self, empty: CompletionChunk | ChatCompletionChunk) -> None:
        common = {name: value for name, value in empty.items() if name != "choices"}
        self._head = encode_event({**common, "choices": []}).removesuffix(b"]}\n\n")

    def encode(self, choice: ChunkChoice, extra: Mapping[str, Any] = _NOTHING) -> bytes:
        """An event; `extra` is what it has besides, under keys that `empty` hasn't got."""
        if not extra:
            return b"%b%b]}\n\n" % (self._head, to_json(choice))
        return b"%b%b],%b\n\n" % (self._head, to_json(choice), to_json(extra)[1:])


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
