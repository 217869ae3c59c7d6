"""What doesn't fit in the context is refused in the words of each API, so that clients know what to
cut: by how much, and under which name."""

from typing import Any

import openai
import pytest

from tests.server.conftest import Server, StartServer, check_error
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
CONTEXT = 64  # tokens
LIMIT = "this model's maximum context length is 64 tokens"


@pytest.fixture
async def small(start_server: StartServer) -> Server:
    return await start_server(FakeAsyncEngine(max_model_len=CONTEXT))


def prompt_of(path: str, length: int) -> dict[str, Any]:
    """The input of a body, of so many characters."""
    text = "x" * length
    if path == COMPLETIONS:
        return {"prompt": text}
    return (
        {"input": text} if path == RESPONSES else {"messages": [{"role": "user", "content": text}]}
    )


@pytest.mark.parametrize(
    ("path", "param", "num_more"),
    [
        (COMPLETIONS, "max_tokens", 1),
        (CHAT, "max_tokens", 17),
        (CHAT, "max_completion_tokens", 17),
        (RESPONSES, "max_output_tokens", 17),
    ],
)
async def test_too_many_tokens_are_refused_with_the_most_that_there_may_be(
    small: Server, path: str, param: str, num_more: int
) -> None:
    """`num_more` tokens of the prompt are the template's, or the begin of sequence."""
    body = prompt_of(path, 20)
    status, answer = await small.post(path, {**body, param: 65})
    assert status == 400
    most = CONTEXT - 20 - num_more + 1
    message = f"{param} must be at most {most}, got 65: {LIMIT}, of which the prompt takes "
    check_error(answer, message, param, "context_length_exceeded")
    status, _ = await small.post(path, {**body, param: most})
    assert status == 200


@pytest.mark.parametrize(
    ("path", "param"), [(COMPLETIONS, "prompt"), (CHAT, "messages"), (RESPONSES, "input")]
)
async def test_a_prompt_that_is_too_long_is_named(small: Server, path: str, param: str) -> None:
    status, answer = await small.post(path, prompt_of(path, 70))
    assert status == 400
    check_error(answer, f"{LIMIT}, but the prompt has ", param, "context_length_exceeded")


async def test_the_openai_client_tells_it_from_other_mistakes(small: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await small.openai.completions.create(model=MODEL_NAME, prompt="x" * 70)
    assert caught.value.code == "context_length_exceeded"


async def test_anthropics_clients_are_told_too(small: Server) -> None:
    body = {**prompt_of(CHAT, 20), "model": MODEL_NAME, "max_tokens": 65}
    status, answer = await small.post("/v1/messages", body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert answer["error"]["message"].startswith("max_tokens must be at most 28, got 65: ")
