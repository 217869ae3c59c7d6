"""Several streams as one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from pyengine.server.merge import merge


class Source:
    """A stream that yields what it is told to."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.is_closed = False

    async def stream(self) -> AsyncGenerator[str, None]:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.is_closed = True

    def put(self, *items: str | Exception | None) -> None:
        for item in items:
            self.queue.put_nowait(item)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_items_of_each_stream_come_in_order_with_its_index(number: int) -> None:
    sources = [Source() for _ in range(number)]
    for index, source in enumerate(sources):
        source.put(*(f"{index}{letter}" for letter in "abc"), None)
    merged: list[list[str]] = [[] for _ in sources]
    async for batch in merge([source.stream() for source in sources]):
        for index, item in batch:
            merged[index].append(item)
    assert merged == [[f"{index}a", f"{index}b", f"{index}c"] for index in range(number)]
    assert all(source.is_closed for source in sources)


async def test_what_came_together_is_yielded_together() -> None:
    sources = [Source(), Source(), Source()]
    async with aclosing(merge([source.stream() for source in sources])) as merged:
        for index in (2, 0):
            sources[index].put(str(index))
        assert sorted(await anext(merged)) == [(0, "0"), (2, "2")]
        sources[1].put("1")
        assert await anext(merged) == [(1, "1")]


@pytest.mark.parametrize("number", [1, 3])
async def test_closing_closes_every_stream(number: int) -> None:
    sources = [Source() for _ in range(number)]
    async with aclosing(merge([source.stream() for source in sources])) as merged:
        sources[0].put("a")
        await anext(merged)
        assert not any(source.is_closed for source in sources)
    assert all(source.is_closed for source in sources)


@pytest.mark.parametrize("number", [1, 3])
async def test_the_first_error_ends_all(number: int) -> None:
    sources = [Source() for _ in range(number)]
    sources[-1].put(ValueError("boom"))
    with pytest.raises(ValueError, match="boom"):
        await anext(merge([source.stream() for source in sources]))
    assert all(source.is_closed for source in sources)
