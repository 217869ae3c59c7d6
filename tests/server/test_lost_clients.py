"""Clients of the real engine that leave at any moment: queued, in mid-prefill, decoding, preempted,
or after the last token."""

import asyncio
from typing import Any

import pytest

from pyengine.engine import AsyncEngine, FaultInjection
from pyengine.engine.sequence import SequenceStatus
from tests.engine.test_async_engine import Gate
from tests.server.conftest import Server, StartServer
from tests.server.test_metrics import scrape
from tests.server.test_real_engine import COMPLETIONS, body_of, make_engine, post_all, until

GAUGES = ("num_requests_running", "num_requests_waiting", "num_used_kv_blocks")


async def check_nothing_left(server: Server) -> None:
    engine: AsyncEngine = server.engine
    await until(lambda: engine.stats().num_used_blocks == 0 and not engine._streams)
    samples = await scrape(server)
    assert [samples[f"pyengine:{gauge}"] for gauge in GAUGES] == [0, 0, 0]
    engine._engine.check_invariants()


class Watcher:
    """Follows the requests of an engine, step by step."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._scheduler = engine._engine._scheduler
        self._deliver = engine._deliver
        self._stepped = asyncio.Event()
        engine._deliver = self._on_step

    async def wait_preempted(self, request_id: str) -> None:
        """Returns once the request is preempted, or at its end."""
        while self._status(request_id) not in (None, SequenceStatus.PREEMPTED):
            await self._stepped.wait()

    def _status(self, request_id: str) -> SequenceStatus | None:
        for sequence in [*self._scheduler.waiting, *self._scheduler.running]:
            if sequence.request_id == request_id:
                return sequence.status
        return None

    def _on_step(self, *step: Any) -> None:
        self._deliver(*step)
        self._stepped.set()
        self._stepped = asyncio.Event()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["queued", "mid-prefill", "decoding", "preempted"])
async def test_a_client_lost_at_any_stage_frees_its_place_in_two_steps(
    start_server: StartServer, gate: Gate, stage: str, stream: bool
) -> None:
    roomy = await start_server(make_engine(num_kv_blocks=64))
    [expected] = await post_all(roomy, [body_of(1)])
    engine = make_engine(
        FaultInjection(before_stage=gate),
        max_num_batched_tokens=4 if stage == "mid-prefill" else 32,
        max_num_seqs=1 if stage == "queued" else 4,
    )
    server = await start_server(engine)
    staying = asyncio.create_task(server.post(COMPLETIONS, body_of(1)))
    await until(lambda: len(engine._streams) == 1)
    await gate.let_pass(engine, 3)
    leaving = asyncio.create_task(server.post(COMPLETIONS, body_of(2, stream=stream)))
    await until(lambda: len(engine._streams) == 2)
    await gate.let_pass(engine, 2)
    if stage == "preempted":
        while engine.stats().num_preemptions == 0:
            await gate.let_pass(engine, 1)
    stats = engine.stats()
    num_running = 1 if stage in ("queued", "preempted") else 2
    assert (stats.num_running, stats.num_waiting) == (num_running, 2 - num_running)
    leaving.cancel()
    await until(lambda: len(engine._streams) == 1)
    await gate.let_pass(engine, 2)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_aborted_requests) == (1, 0, 1)
    gate.open()
    status, answer = await staying
    assert (status, answer["choices"]) == (200, expected["choices"])
    await check_nothing_left(server)


async def test_five_hundred_clients_leave_while_preempted(start_server: StartServer) -> None:
    roomy = await start_server(make_engine(num_kv_blocks=64))
    [expected] = await post_all(roomy, [body_of(9)])
    engine = make_engine()
    server = await start_server(engine)
    watcher = Watcher(engine)

    async def leave_when_preempted(number: int) -> None:
        body = body_of(number, stream=True, ignore_eos=True)
        async with server.http.post(server.url + COMPLETIONS, json=body) as response:
            call_id = (await response.content.readuntil(b'"object"')).split(b'"')[3].decode()
            request_id = f"{call_id}-0"
            await watcher.wait_preempted(request_id)
            response.close()

    async def client(number: int) -> None:
        while engine.stats().num_aborted_requests < 500:
            await leave_when_preempted(number)

    await asyncio.gather(*(client(number) for number in range(8)))
    await check_nothing_left(server)
    assert engine.stats().num_preemptions >= 500
    [after] = await post_all(server, [body_of(9)])
    assert after["choices"] == expected["choices"]
