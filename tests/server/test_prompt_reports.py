"""What an answer tells of its prompt: the echo, log-probabilities, token ids."""

from typing import Any

import pytest

from pyengine.outputs import TokenLogprobs
from pyengine.sampling_params import SamplingParams
from tests.engine.harness import solo
from tests.server.conftest import Server, StartServer
from tests.server.fakes import BOS, EOS, MODEL_NAME, FakeAsyncEngine, answer
from tests.server.test_real_engine import make_engine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


async def test_an_echo_puts_the_prompt_before_each_choice(server: Server) -> None:
    completion = await server.openai.completions.create(
        model=MODEL_NAME, prompt=["ab", "c"], n=2, echo=True
    )
    texts = [choice.text for choice in completion.choices]
    assert texts == ["ab0AB", "ab1AB", "c0C", "c1C"]
    assert completion.choices[0].logprobs is None


@pytest.mark.parametrize(
    ("skip_special_tokens", "text"), [(True, "ab0AB"), (False, "<s>ab0AB</s>")]
)
async def test_the_echo_of_token_ids_is_their_text(
    server: Server, skip_special_tokens: bool, text: str
) -> None:
    body = {
        "prompt": [BOS, 97, 98],
        "echo": True,
        "skip_special_tokens": skip_special_tokens,
        "include_stop_str_in_output": True,
    }
    _, completion = await server.post(COMPLETIONS, body)
    assert completion["choices"][0]["text"] == text


async def test_an_echo_with_logprobs_has_those_of_the_prompt_first(
    start_server: StartServer,
) -> None:
    server = await start_server(FakeAsyncEngine(answer("z")))
    completion = await server.openai.completions.create(
        model=MODEL_NAME, prompt="aé", echo=True, logprobs=1
    )
    [choice] = completion.choices
    assert choice.text == "aéz"
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["<s>", "a", "bytes:\\xc3", "bytes:\\xa9", "z", "</s>"]
    assert logprobs.token_logprobs == [None, *[-1.0] * 5]
    assert logprobs.text_offset == [0, 0, 1, 1, 2, 3]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] is None
    assert logprobs.top_logprobs[1] == {"b": -0.25, "a": -1.0}
    assert logprobs.top_logprobs[4] == {"{": -0.25, "z": -1.0}


async def test_a_prompt_may_be_scored_without_an_answer(server: Server) -> None:
    """As evaluation harnesses do it."""
    completion = await server.openai.completions.create(
        model=MODEL_NAME, prompt=["ab", "c"], max_tokens=0, echo=True, logprobs=0
    )
    assert [choice.text for choice in completion.choices] == ["ab", "c"]
    assert [choice.finish_reason for choice in completion.choices] == ["length"] * 2
    assert completion.choices[0].logprobs is not None
    assert completion.choices[0].logprobs.tokens == ["<s>", "a", "b"]
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (5, 0)


async def test_a_chat_may_be_scored_without_an_answer(server: Server) -> None:
    completion = await server.openai.chat.completions.create(
        model=MODEL_NAME, messages=MESSAGES, max_tokens=0, extra_body={"prompt_logprobs": 0}
    )
    assert completion.choices[0].message.content == ""
    assert completion.choices[0].finish_reason == "length"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_without_a_report_of_the_prompt_there_must_be_a_token(
    server: Server, path: str
) -> None:
    body = {"prompt": "a"} if path == COMPLETIONS else {"messages": MESSAGES}
    status, answer = await server.post(path, {**body, "max_tokens": 0, "logprobs": None})
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("best_of", [None, 2])
async def test_best_of_may_equal_n(server: Server, best_of: int | None) -> None:
    completion = await server.openai.completions.create(
        model=MODEL_NAME, prompt="a", n=2, best_of=best_of
    )
    assert [choice.text for choice in completion.choices] == ["0A", "1A"]


async def test_prompt_logprobs_have_the_shape_that_vllm_gives_them(server: Server) -> None:
    extra = {"prompt_logprobs": 1}
    completion = await server.openai.completions.create(
        model=MODEL_NAME, prompt="a", extra_body=extra
    )
    expected = [
        None,
        {
            "97": {"logprob": -1.0, "rank": 3, "decoded_token": "a"},
            "98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"},
        },
    ]
    assert completion.choices[0].to_dict()["prompt_logprobs"] == expected
    chat = await server.openai.chat.completions.create(
        model=MODEL_NAME, messages=MESSAGES, extra_body=extra
    )
    prompt_logprobs: Any = chat.to_dict()["prompt_logprobs"]
    assert len(prompt_logprobs) == chat.usage.prompt_tokens  # type: ignore[union-attr]
    assert prompt_logprobs[0] is None
    assert "prompt_logprobs" not in chat.choices[0].to_dict()


async def test_an_echo_and_prompt_logprobs_may_ask_for_different_numbers(server: Server) -> None:
    body = {"prompt": "ab", "echo": True, "logprobs": 2, "prompt_logprobs": 0}
    _, completion = await server.post(COMPLETIONS, body)
    [choice] = completion["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:3]] == [3, 3]
    assert [len(place) for place in choice["prompt_logprobs"][1:]] == [1, 1]


async def test_prompt_logprobs_are_those_of_the_model(start_server: StartServer) -> None:
    prompt = [*range(40, 60)]
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=3, prompt_logprobs=3)
    expected = solo(prompt, params)
    server = await start_server(make_engine(num_kv_blocks=64, max_num_batched_tokens=8))
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 2, "logprobs": 3, "echo": True}
    for _ in range(2):  # the second time the prompt is in the prefix cache
        _, completion = await server.post(COMPLETIONS, {**body, "prompt_logprobs": 3})
        [choice] = completion["choices"]
        assert expected.prompt_logprobs is not None
        for place, item in zip(choice["prompt_logprobs"], expected.prompt_logprobs, strict=True):
            assert (place is None) == (item is None)
            if item is not None:
                assert by_token(place) == by_token_of(item)
        said = expected.outputs[0].logprobs
        assert said is not None
        items = [*expected.prompt_logprobs, *said]
        assert choice["logprobs"]["token_logprobs"] == [
            None if item is None else item.logprob for item in items
        ]


def by_token(place: dict[str, dict[str, Any]]) -> dict[int, tuple[float, int]]:
    return {int(token): (entry["logprob"], entry["rank"]) for token, entry in place.items()}


def by_token_of(item: TokenLogprobs) -> dict[int, tuple[float, int]]:
    ranked = zip(item.top_token_ids, item.top_logprobs, range(1, 4), strict=True)
    found = {token: (logprob, rank) for token, logprob, rank in ranked}
    return found | {item.token_id: (item.logprob, item.rank)}


async def test_token_ids_come_with_completions_if_asked_for(server: Server) -> None:
    body = {"prompt": ["a", "b"], "return_token_ids": True}
    _, completion = await server.post(COMPLETIONS, body)
    assert [choice["prompt_token_ids"] for choice in completion["choices"]] == [
        [BOS, 97],
        [BOS, 98],
    ]
    assert [choice["token_ids"] for choice in completion["choices"]] == [
        [*b"0A", EOS],
        [*b"0B", EOS],
    ]
    _, plain = await server.post(COMPLETIONS, {"prompt": "a"})
    assert not {"token_ids", "prompt_token_ids"} & plain["choices"][0].keys()


async def test_token_ids_come_with_chats_if_asked_for(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(answer("hi")))
    body = {"messages": MESSAGES, "return_token_ids": True}
    _, chat = await server.post(CHAT, body)
    assert bytes(chat["prompt_token_ids"]) == b"[user]hi[assistant]"
    assert chat["choices"][0]["token_ids"] == [*b"hi", EOS]


async def test_a_stream_brings_token_ids_though_their_text_is_held_back(
    start_server: StartServer,
) -> None:
    server = await start_server(FakeAsyncEngine(answer("abé")))
    body = {"prompt": "x", "stop": "abc", "return_token_ids": True}
    *chunks, _done = await server.stream(COMPLETIONS, body)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["token_ids"] for choice in choices] == [[97], [98], [0xC3], [0xA9], [EOS]]
    assert [choice["text"] for choice in choices] == ["", "", "", "abé", ""]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[BOS, 120], *[None] * 4]
    *chunks, _done = await server.stream(CHAT, {"messages": MESSAGES, "return_token_ids": True})
    assert bytes(chunks[0]["prompt_token_ids"]) == b"[user]hi[assistant]"
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_usage_may_come_with_every_chunk(start_server: StartServer, path: str) -> None:
    server = await start_server(FakeAsyncEngine(answer("ab")))
    body = {"prompt": "x"} if path == COMPLETIONS else {"messages": MESSAGES}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _done = await server.stream(path, {**body, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    opening = [1] if path == CHAT else []  # sent along with the first token
    assert counts == [*opening, 1, 2, 3, 3]
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
