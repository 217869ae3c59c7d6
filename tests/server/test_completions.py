"""/v1/completions, as the OpenAI client sees it."""

import asyncio

import openai
import pytest

from tests.server.conftest import Server, StartServer
from tests.server.fakes import BOS, EOS, MODEL_NAME, TIMINGS, FakeAsyncEngine, answer


async def test_a_completion_has_all_that_openai_promises(server: Server) -> None:
    completion = await server.openai.completions.create(model=MODEL_NAME, prompt="hello", seed=5)
    assert completion.id.startswith("cmpl-")
    assert completion.object == "text_completion"
    assert completion.model == MODEL_NAME
    [choice] = completion.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, "0HELLO", "stop")
    assert choice.logprobs is None
    assert completion.usage is not None
    assert completion.usage.to_dict() == {
        "prompt_tokens": 6,  # with <s>
        "completion_tokens": 7,  # with </s>
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_an_answer_and_all_its_chunks_carry_the_fingerprint(server: Server) -> None:
    create = server.openai.completions.create
    whole = await create(model=MODEL_NAME, prompt="a")
    chunks = [chunk async for chunk in await create(model=MODEL_NAME, prompt="a", stream=True)]
    assert {answer.system_fingerprint for answer in [whole, *chunks]} == {"fp_fake"}


async def test_a_completion_tells_where_its_time_went_and_its_seed(server: Server) -> None:
    body = {"prompt": "a", "seed": 5, "n": 2}
    _, completion = await server.post("/v1/completions", body)
    timings = {
        "queue_wait_ms": TIMINGS.queue_wait_ms,
        "time_to_first_token_ms": TIMINGS.time_to_first_token_ms,
        "execution_ms": TIMINGS.execution_ms,
        "total_ms": TIMINGS.total_ms,
        "decode_tokens_per_s": TIMINGS.decode_tokens_per_s,
        "num_preemptions": TIMINGS.num_preemptions,
        "num_recomputed_tokens": TIMINGS.num_recomputed_tokens,
        "stalled_ms": TIMINGS.stalled_ms,
    }
    assert completion["pyengine"] == {
        "choices": [
            {"index": 0, "seed": 5, "timings": timings},
            {"index": 1, "seed": 6, "timings": timings},
        ]
    }


async def test_the_synchronous_client_works_too(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        completion = await asyncio.to_thread(
            client.completions.create, model=MODEL_NAME, prompt="hi"
        )
    assert completion.choices[0].text == "0HI"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["ab"], [[BOS, 97, 98]]),
        (["ab", "c"], [[BOS, 97, 98], [BOS, 99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
        ("</s>", [[BOS, *b"</s>"]]),
        ("", [[BOS]]),
    ],
)
async def test_a_prompt_may_be_text_or_ids_or_a_list_of_these(
    server: Server, prompt: object, expected: list[list[int]]
) -> None:
    status, completion = await server.post("/v1/completions", {"prompt": prompt})
    assert status == 200
    assert [request.prompt_token_ids for request in server.engine.requests] == expected
    assert completion["usage"]["prompt_tokens"] == sum(map(len, expected))


async def test_choices_are_numbered_prompt_times_n_plus_k(server: Server) -> None:
    completion = await server.openai.completions.create(
        model=MODEL_NAME, prompt=["a", "b", "c"], n=2
    )
    assert [(choice.index, choice.text) for choice in completion.choices] == [
        (0, "0A"),
        (1, "1A"),
        (2, "0B"),
        (3, "1B"),
        (4, "0C"),
        (5, "1C"),
    ]
    infos = completion.to_dict()["pyengine"]["choices"]
    assert [info["index"] for info in infos] == list(range(6))


async def test_prompts_without_a_seed_draw_one_each_and_share_the_clients(server: Server) -> None:
    await server.post("/v1/completions", {"prompt": ["a", "a"]})
    await server.post("/v1/completions", {"prompt": ["a", "a"], "seed": 3})
    assert [request.seed for request in server.engine.requests] == [1000, 1001, 3, 3]


async def test_every_field_reaches_the_engine(server: Server) -> None:
    fields = {
        "n": 2,
        "max_tokens": 3,
        "min_tokens": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.4,
        "seed": 11,
        "stop": ["x", "y"],
        "stop_token_ids": [1, 2],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": 4,
        "prompt_logprobs": 2,
    }
    body = {"prompt": "a", "user": "someone", "logit_bias": {"5": -3, "0": 1.5}, **fields}
    status, _ = await server.post("/v1/completions", body)
    assert status == 200
    params = server.engine.requests[0].params
    assert {name: getattr(params, name) for name in fields} == fields
    assert params.logit_bias == {5: -3, 0: 1.5}


async def test_a_field_that_is_null_counts_as_left_out(server: Server) -> None:
    names = ("n", "max_tokens", "temperature", "seed", "stop", "logprobs", "stream", "model")
    status, _ = await server.post("/v1/completions", {"prompt": "a", **dict.fromkeys(names)})
    assert status == 200
    params = server.engine.requests[0].params
    assert (params.n, params.max_tokens, params.temperature) == (1, 16, 1.0)


async def test_a_whole_number_will_do_where_a_fraction_may_stand(server: Server) -> None:
    status, _ = await server.post("/v1/completions", {"prompt": "a", "temperature": 0})
    assert status == 200
    assert server.engine.requests[0].params.temperature == 0


async def test_sixteen_tokens_are_generated_by_default(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(answer("x" * 100)))
    completion = await server.openai.completions.create(model=MODEL_NAME, prompt="a")
    assert completion.choices[0].text == "x" * 16
    assert completion.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "text", "stop_reason"),
    [
        ({"stop": "lo"}, "hel", "lo"),
        ({"stop": ["z", "lo"]}, "hel", "lo"),
        ({"stop": "lo", "include_stop_str_in_output": True}, "hello", "lo"),
        ({"stop_token_ids": [ord("o")]}, "hell", ord("o")),
        ({}, "hello", None),
    ],
)
async def test_what_stopped_a_choice_is_told(
    start_server: StartServer, fields: dict[str, object], text: str, stop_reason: object
) -> None:
    server = await start_server(FakeAsyncEngine(answer("hello")))
    _, completion = await server.post("/v1/completions", {"prompt": "a", **fields})
    [choice] = completion["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")
    assert choice["stop_reason"] == stop_reason


async def test_cached_prompt_tokens_are_counted_over_all_prompts(server: Server) -> None:
    await server.openai.completions.create(model=MODEL_NAME, prompt="abc")
    completion = await server.openai.completions.create(
        model=MODEL_NAME, prompt=["abc", "new", "abc"]
    )
    assert completion.usage is not None
    assert completion.usage.to_dict()["prompt_tokens_details"] == {"cached_tokens": 6}


async def test_logprobs_have_the_shape_of_completions(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(answer("aé")))
    completion = await server.openai.completions.create(model=MODEL_NAME, prompt="x", logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    # é is two tokens, neither a character of its own; it ends with the second.
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "</s>"]
    assert logprobs.token_logprobs == [-1.0] * 4
    assert logprobs.text_offset == [0, 1, 1, 2]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"b": -0.25, "c": -0.5, "a": -1.0}
    assert logprobs.top_logprobs[1]["bytes:\\xc3"] == -1.0


async def test_logprobs_zero_tells_of_the_token_alone(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(lambda request, index: [97, EOS]))
    completion = await server.openai.completions.create(model=MODEL_NAME, prompt="x", logprobs=0)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs == [{"a": -1.0}, {"</s>": -1.0}]
