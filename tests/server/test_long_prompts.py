"""A long prompt doesn't hold up the event loop."""

import asyncio
import threading
from typing import Any

import pytest

from pyengine.server.prompts import MAX_CHARS_ON_LOOP, MAX_TOKENS_ON_LOOP
from tests.server.conftest import Server, StartServer
from tests.server.fakes import ByteTokenizer, FakeAsyncEngine


class GatedTokenizer(ByteTokenizer):
    """Long texts wait for the gate, and every call notes its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.threads: list[threading.Thread] = []

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        self._note(len(text) > MAX_CHARS_ON_LOOP)
        return super()._encode(text, parse_special)

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        self._note(len(token_ids) > MAX_TOKENS_ON_LOOP)
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _note(self, is_long: bool) -> None:
        self.threads.append(threading.current_thread())
        if is_long:
            assert self.gate.wait(10)


LONG = "x" * 2_000_000


@pytest.fixture
async def server(start_server: StartServer) -> Server:
    engine = FakeAsyncEngine(max_model_len=4_000_000)
    engine.tokenizer = GatedTokenizer()
    return await start_server(engine)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG, "max_tokens": 1}),
        ("/v1/completions", {"prompt": ["x", LONG], "max_tokens": 1}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1},
        ),
        ("/tokenize", {"prompt": LONG}),
        ("/detokenize", {"tokens": [97] * 100_000}),
    ],
)
async def test_others_are_served_while_a_long_text_is_encoded(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    tokenizer = server.engine.tokenizer
    call = asyncio.create_task(server.post(path, body))
    while not call.done() and not any(t is not threading.main_thread() for t in tokenizer.threads):
        assert (await server.get("/health"))[0] == 200
    *_, done = await server.stream("/v1/completions", {"prompt": "short"})
    assert done == "[DONE]"
    assert not call.done()
    tokenizer.gate.set()
    status, _ = await call
    assert status == 200


async def test_short_texts_are_encoded_where_they_arrive(server: Server) -> None:
    await server.post("/v1/completions", {"prompt": "short"})
    await server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
    await server.post("/detokenize", {"tokens": [97]})
    assert server.engine.tokenizer.threads == [threading.main_thread()] * 3


async def test_what_fails_in_the_other_thread_is_told_all_the_same(server: Server) -> None:
    messages = [{"role": "user", "content": LONG}, {"role": "system", "content": "too late"}]
    status, body = await server.post("/v1/chat/completions", {"messages": messages})
    assert (status, body["error"]["param"]) == (400, "messages")
