"""Several streams as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[list[tuple[int, T]], None]:
    """Yields all that has come since the last time, each item with its stream's index.

    Items of one stream stay in order. The first error of a stream ends the whole. However it ends,
    all streams are closed before it has.
    """
    if len(streams) == 1:  # nothing to merge: spare each token the way through a queue
        async with aclosing(streams[0]) as stream:
            async for item in stream:
                yield [(0, item)]
        return

    inbox: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()  # None: a stream ended

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    inbox.put_nowait((index, item))
        except Exception as error:
            inbox.put_nowait(error)
        else:
            inbox.put_nowait(None)

    pumps = [asyncio.create_task(pump(*pair)) for pair in enumerate(streams)]
    try:
        num_open = len(pumps)
        while num_open:
            received = [await inbox.get()]
            while not inbox.empty():
                received.append(inbox.get_nowait())
            batch = []
            for event in received:
                if isinstance(event, Exception):
                    raise event
                if event is None:
                    num_open -= 1
                else:
                    batch.append(event)
            if batch:
                yield batch
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
