"""Many clients at once, and what happens when they leave."""

import asyncio
import threading
from contextlib import aclosing

import pytest
import torch

from pyengine.config import EngineConfig
from pyengine.engine import AsyncEngine, Engine, FaultInjection
from pyengine.engine.scheduler import ScheduledBatch
from pyengine.errors import EngineStoppedError, QueueFullError, StepFailedError
from pyengine.outputs import CompletionOutput, RequestOutput
from tests.engine.harness import GREEDY, assert_same, greedy, prompt_of, solo
from tests.tiny import tiny_model


@pytest.fixture
async def make_engine():
    """Builds started engines over 8 blocks of 4 tokens; they are stopped and checked at the end."""
    engines: list[tuple[AsyncEngine, Engine]] = []

    def make(faults: FaultInjection | None = None, **options) -> AsyncEngine:
        options = {"block_size": 4, "num_kv_blocks": 8, "max_num_batched_tokens": 32} | options
        engine = Engine(tiny_model(), EngineConfig(model="tiny", **options), faults)
        async_engine = AsyncEngine(engine)
        async_engine.start()
        engines.append((async_engine, engine))
        return async_engine

    yield make
    for async_engine, engine in engines:
        if isinstance(engine._faults.before_stage, Gate):
            engine._faults.before_stage.open()
        await async_engine.shutdown(0)
        if async_engine.error is None:
            engine.check_invariants()
            assert engine.stats().num_used_blocks == 0
            assert not engine.has_unfinished
        assert not async_engine._streams


class Gate:
    """Lets the engine take a step only when told to, at a point where what came of the step before
    is handed over already."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        self._is_open = False

    def __call__(self, stage: str, step: int) -> None:
        if stage == "forward" and not self._is_open:
            self._passes.acquire()

    async def let_pass(self, engine: AsyncEngine, num_steps: int) -> None:
        """Returns when so many more steps are over."""
        target = engine.stats().num_steps + num_steps
        self._passes.release(num_steps)
        await until(lambda: engine.stats().num_steps >= target)

    def open(self) -> None:
        self._is_open = True
        self._passes.release()


async def collect(engine: AsyncEngine, request_id: str, prompt, params=GREEDY) -> RequestOutput:
    request = engine.new_request(request_id, prompt, params)
    output = RequestOutput(request_id, None, prompt, [CompletionOutput(0)], request.seed)
    async for update in engine.generate(request):
        output.extend(update)
    return output


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def test_streams_of_preempted_requests_have_no_gap_and_no_repeat(make_engine):
    engine = make_engine()
    outputs = await asyncio.gather(
        *(collect(engine, f"r{seed}", prompt_of(10, seed)) for seed in range(3))
    )
    assert engine.stats().num_preemptions >= 1
    for seed, output in enumerate(outputs):
        assert_same(output, solo(prompt_of(10, seed)))


async def test_eight_clients_contend_for_five_hundred_requests(make_engine):
    engine = make_engine()
    expected = [solo(prompt_of(10, seed)) for seed in range(4)]

    async def client(number: int) -> None:
        for k in range(63):
            seed = (number + k) % 4
            output = await collect(engine, f"c{number}-{k}", prompt_of(10, seed))
            assert_same(output, expected[seed])

    await asyncio.gather(*(client(number) for number in range(8)))
    stats = engine.stats()
    assert stats.num_preemptions >= 100
    assert stats.num_accepted_requests == 504


@pytest.mark.parametrize("stage", ["queued", "mid-prefill", "decoding", "preempted"])
async def test_a_client_that_leaves_frees_its_blocks_and_disturbs_nobody(make_engine, stage):
    gate = Gate()
    engine = make_engine(
        FaultInjection(before_stage=gate),
        max_num_batched_tokens=4 if stage == "mid-prefill" else 32,
        max_num_seqs=1 if stage == "queued" else 4,
    )
    other = asyncio.create_task(collect(engine, "other", prompt_of(10, 1), greedy(20)))
    await gate.let_pass(engine, 3)
    leaver = asyncio.create_task(collect(engine, "leaver", prompt_of(8, 2)))
    await until(lambda: "leaver" in engine._streams)
    await gate.let_pass(engine, 2)
    if stage == "preempted":
        while engine.stats().num_preemptions == 0:
            await gate.let_pass(engine, 1)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (
        (1, 1) if stage in ("queued", "preempted") else (2, 0)
    )
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    await gate.let_pass(engine, 2)
    stats = engine.stats()
    assert stats.num_aborted_requests == 1
    assert (stats.num_running, stats.num_waiting) == (1, 0)
    gate.open()
    assert_same(await other, solo(prompt_of(10, 1), greedy(20)))


async def test_leaving_after_the_last_token_aborts_nothing(make_engine):
    engine = make_engine()
    request = engine.new_request("r", prompt_of(4), greedy(2))
    stream = engine.generate(request)
    async for update in stream:
        if update.finished:
            break
    await stream.aclose()
    await collect(engine, "next", prompt_of(4), greedy(2))
    assert engine.stats().num_aborted_requests == 0


async def test_a_full_queue_refuses_newcomers_and_serves_those_it_took(make_engine):
    engine = make_engine(max_num_seqs=1, max_num_waiting=4)
    results = await asyncio.gather(
        *(collect(engine, f"r{k}", prompt_of(5, k), greedy(4)) for k in range(20)),
        return_exceptions=True,
    )
    refused = [r for r in results if isinstance(r, QueueFullError)]
    assert len(refused) == 15
    assert "max_num_waiting" in str(refused[0])
    for k, result in enumerate(results):
        if not isinstance(result, QueueFullError):
            assert_same(result, solo(prompt_of(5, k), greedy(4)))


async def test_a_step_that_throws_ends_its_requests_and_the_engine_lives(make_engine):
    def throw(stage: str, step: int) -> None:
        if (stage, step) == ("forward", 1):
            raise ZeroDivisionError("injected")

    engine = make_engine(FaultInjection(before_stage=throw))
    with pytest.raises(StepFailedError, match="injected"):
        await collect(engine, "r0", prompt_of(5))
    assert engine.is_running
    assert_same(await collect(engine, "r1", prompt_of(5)), solo(prompt_of(5)))


async def test_a_gpu_that_failed_ends_the_engine(make_engine):
    """Every later step would fail too, and nobody would know of it."""

    def throw(stage: str, step: int) -> None:
        if (stage, step) == ("forward", 1):
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    engine = make_engine(FaultInjection(before_stage=throw))
    with pytest.raises(StepFailedError, match=r"the engine has died.*illegal memory access"):
        await collect(engine, "r0", prompt_of(5))
    assert not engine.is_running
    assert isinstance(engine.error, torch.AcceleratorError)


async def test_a_token_comes_while_the_next_is_computed(make_engine):
    gate = Gate()
    engine = make_engine(FaultInjection(before_stage=gate))
    request = engine.new_request("r", prompt_of(5), greedy(3))
    async with aclosing(engine.generate(request)) as stream:
        first = asyncio.ensure_future(anext(stream))
        await gate.let_pass(engine, 1)
        async with asyncio.timeout(30):
            assert len((await first).deltas[0].token_ids) == 1
        gate.open()


async def test_what_came_before_a_fault_of_the_engine_is_handed_over(make_engine):
    engine = make_engine()
    schedule = engine._engine._scheduler.schedule

    def break_after_two(now_ns: int) -> ScheduledBatch:
        if engine._engine.stats().num_steps == 2:
            raise RuntimeError("broken invariant")
        return schedule(now_ns)

    engine._engine._scheduler.schedule = break_after_two
    token_ids = []

    async def read() -> None:
        async for update in engine.generate(engine.new_request("r", prompt_of(5), GREEDY)):
            token_ids.extend(update.deltas[0].token_ids)

    with pytest.raises(StepFailedError, match="broken invariant"):
        await read()
    assert token_ids == solo(prompt_of(5)).outputs[0].token_ids[:2]


async def test_a_fault_of_the_engine_fails_what_is_open_and_refuses_the_rest(make_engine, caplog):
    engine = make_engine()

    def fault(now_ns: int) -> None:
        raise RuntimeError("broken invariant")

    engine._engine._scheduler.schedule = fault
    with pytest.raises(StepFailedError, match="broken invariant"):
        await collect(engine, "r0", prompt_of(5))
    assert not engine.is_running
    assert "broken invariant" in str(engine.error)
    with pytest.raises(EngineStoppedError, match="broken invariant"):
        await collect(engine, "r1", prompt_of(5))
    assert "the engine has died" in caplog.text


async def test_shutdown_lets_running_requests_finish_and_refuses_new_ones(make_engine):
    engine = make_engine()
    running = asyncio.create_task(collect(engine, "r0", prompt_of(10)))
    await until(lambda: "r0" in engine._streams)
    stopping = asyncio.create_task(engine.shutdown(drain_timeout_s=30))
    await until(lambda: not engine.is_running)
    with pytest.raises(EngineStoppedError, match="shutting down"):
        await collect(engine, "r1", prompt_of(5))
    await stopping
    assert_same(await running, solo(prompt_of(10)))
    await engine.shutdown(drain_timeout_s=30)


async def test_at_the_limit_of_a_shutdown_the_rest_gets_an_error(make_engine):
    gate = Gate()
    engine = make_engine(FaultInjection(before_stage=gate))
    running = asyncio.create_task(collect(engine, "r0", prompt_of(10)))
    await gate.let_pass(engine, 3)
    stopping = asyncio.create_task(engine.shutdown(drain_timeout_s=0))
    with pytest.raises(EngineStoppedError, match="stopped before the request finished"):
        await running
    gate.open()
    await stopping


async def test_an_id_that_is_open_is_refused_and_can_be_used_again_later(make_engine):
    engine = make_engine()
    first = asyncio.create_task(collect(engine, "same", prompt_of(10)))
    await until(lambda: "same" in engine._streams)
    with pytest.raises(ValueError, match="already open"):
        await collect(engine, "same", prompt_of(5))
    await first
    assert_same(await collect(engine, "same", prompt_of(5)), solo(prompt_of(5)))


async def test_requests_of_one_call_come_in_one_stream_and_say_what_each_says_alone(make_engine):
    engine = make_engine()
    requests = [engine.new_request(f"r{k}", prompt_of(10, k), GREEDY) for k in range(3)]
    outputs = {
        r.request_id: RequestOutput(
            r.request_id, None, r.prompt_token_ids, [CompletionOutput(0)], r.seed
        )
        for r in requests
    }
    async for updates in engine.generate_all(requests):
        for update in updates:
            outputs[update.request_id].extend(update)
    for k, request in enumerate(requests):
        assert_same(outputs[request.request_id], solo(prompt_of(10, k)))


async def test_what_a_step_added_to_the_requests_of_a_call_comes_together(make_engine):
    gate = Gate()
    engine = make_engine(FaultInjection(before_stage=gate), num_kv_blocks=64)
    requests = [engine.new_request(f"r{k}", prompt_of(5, k), greedy(8)) for k in range(3)]
    async with aclosing(engine.generate_all(requests)) as batches:
        first = asyncio.ensure_future(anext(batches))
        await gate.let_pass(engine, 1)
        assert [update.request_id for update in await first] == ["r0", "r1", "r2"]
        await gate.let_pass(engine, 2)  # nobody takes what they add
        taken = await anext(batches)
        assert [update.request_id for update in taken] == ["r0", "r1", "r2"] * 2
        gate.open()


async def test_closing_a_call_aborts_those_of_its_requests_that_have_not_finished(make_engine):
    gate = Gate()
    engine = make_engine(FaultInjection(before_stage=gate), num_kv_blocks=64)
    requests = [
        engine.new_request("short", prompt_of(5), greedy(1)),
        engine.new_request("long", prompt_of(5, 1), greedy(20)),
    ]
    async with aclosing(engine.generate_all(requests)) as batches:
        first = asyncio.ensure_future(anext(batches))
        await gate.let_pass(engine, 1)
        assert [update.finished for update in await first] == [True, False]
    gate.open()
    await collect(engine, "next", prompt_of(4), greedy(2))
    assert engine.stats().num_aborted_requests == 1


async def test_a_call_with_one_request_too_many_runs_none_of_its_requests(make_engine):
    engine = make_engine(max_num_seqs=1, max_num_waiting=2)
    requests = [engine.new_request(f"r{k}", prompt_of(5, k), greedy(2)) for k in range(4)]
    with pytest.raises(QueueFullError):
        await anext(engine.generate_all(requests))
    same = [engine.new_request("same", prompt_of(5), greedy(2)) for _ in range(2)]
    with pytest.raises(ValueError, match="already open"):
        await anext(engine.generate_all(same))
    await collect(engine, "next", prompt_of(4), greedy(2))
    assert engine.stats().num_accepted_requests == 1


async def test_what_came_before_a_fault_is_handed_out_before_the_error(make_engine):
    gate = Gate()
    engine = make_engine(FaultInjection(before_stage=gate))
    stream = engine.generate(engine.new_request("r", prompt_of(5), greedy(8)))
    first = asyncio.ensure_future(anext(stream))
    await gate.let_pass(engine, 1)
    await first
    await gate.let_pass(engine, 1)
    await engine.shutdown(0)
    gate.open()
    assert len((await anext(stream)).deltas[0].token_ids) == 1
    with pytest.raises(EngineStoppedError):
        await anext(stream)


async def test_what_was_left_of_a_request_does_not_reach_the_next_of_its_id(make_engine):
    engine = make_engine()
    for seed in range(20):
        left, wanted = prompt_of(5, seed), prompt_of(6, seed)
        async with aclosing(
            engine.generate(engine.new_request("same", left, greedy(9)))
        ) as updates:
            await anext(updates)
        assert_same(await collect(engine, "same", wanted, greedy(9)), solo(wanted, greedy(9)))
