"""Streams say what whole answers say, field for field, for options in all combinations: one by one
with plenty of memory, and all at once, with little, and preempted now and then."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from pyengine.config import EngineConfig
from pyengine.engine import AsyncEngine, Engine, FaultInjection
from tests.server.conftest import StartServer
from tests.server.test_streams import join_chunks
from tests.tiny import tiny_model

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
INPUTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": ["one", "two"]},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
LOGPROBS = {COMPLETIONS: {"logprobs": 2}, CHAT: {"logprobs": True, "top_logprobs": 2}}
USAGE: list[dict[str, Any] | None] = [
    None,
    {"include_usage": True, "continuous_usage_stats": True},
]


def bodies(path: str) -> Iterator[dict[str, Any]]:
    for n, logprobs, stop, echo, token_ids, sampled, usage in itertools.product(
        (1, 3),
        ({}, LOGPROBS[path]),
        ({}, {"stop": ["e", "ma"]}, {"stop": ["st"], "include_stop_str_in_output": True}),
        ({}, {"echo": True}) if path == COMPLETIONS else ({},),
        ({}, {"return_token_ids": True}),
        ({"temperature": 0}, {"seed": 5}),
        USAGE,
    ):
        body = {**INPUTS[path], "n": n, "max_tokens": 9, **logprobs, **stop, **echo}
        yield {**body, **token_ids, **sampled, "stream_options": usage}


def make_engine(num_kv_blocks: int, faults: FaultInjection | None = None) -> AsyncEngine:
    """All that it says is letters."""
    config = EngineConfig(
        model="tiny",
        block_size=4,
        num_kv_blocks=num_kv_blocks,
        max_num_batched_tokens=64,
        max_num_waiting=2048,
        enable_prefix_caching=False,  # the number of cached tokens depends on what came before
    )
    return AsyncEngine(Engine(tiny_model(letters=True), config, faults))


def comparable(answer: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """What can't differ between two answers to a body."""
    kept = {k: v for k, v in answer.items() if k not in ("id", "created", "object", "usage")}
    if body["stream_options"] is not None:
        kept["usage"] = answer["usage"]
    seeds = [info["seed"] for info in kept.pop("pyengine")["choices"]]
    return kept | ({"seeds": seeds} if "seed" in body else {})


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stream_says_what_the_whole_answer_says(
    start_server: StartServer, path: str
) -> None:
    roomy = await start_server(make_engine(num_kv_blocks=256))
    preempting = FaultInjection(preempt_at_steps=frozenset(range(0, 10_000, 7)))
    tight = await start_server(make_engine(num_kv_blocks=24, faults=preempting))
    all_bodies = list(bodies(path))
    streams = await asyncio.gather(*(tight.stream(path, body) for body in all_bodies))
    assert tight.engine.stats().num_preemptions > 0
    for body, (*chunks, done) in zip(all_bodies, streams, strict=True):
        assert done == "[DONE]"
        status, whole = await roomy.post(path, {**body, "stream_options": None})
        assert status == 200
        alone = join_chunks((await roomy.stream(path, body))[:-1])
        envelope = {k: chunks[0][k] for k in ("model", "system_fingerprint")}
        expected = comparable(whole, body)
        assert comparable(envelope | alone, body) == expected, body
        assert comparable(envelope | join_chunks(chunks), body) == expected, body
