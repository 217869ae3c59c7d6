"""The endpoints around generation."""

import re

import openai
import pytest

import pyengine
from tests.server.conftest import Server, StartServer
from tests.server.fakes import BOS, EOS, MODEL_NAME, FakeAsyncEngine


async def test_models_are_listed_by_each_name(server: Server) -> None:
    models = [model async for model in server.openai.models.list()]
    assert [model.id for model in models] == [MODEL_NAME, "alias"]
    assert all((m.object, m.owned_by) == ("model", "pyengine") for m in models)


async def test_a_model_is_found_by_its_name_with_or_without_an_escaped_slash(
    server: Server,
) -> None:
    model = await server.openai.models.retrieve(MODEL_NAME)
    assert model.id == MODEL_NAME
    status, body = await server.get(f"/v1/models/{MODEL_NAME}")
    assert (status, body["id"]) == (200, MODEL_NAME)
    assert body["max_model_len"] == 4096
    assert body["root"] == "models/fake"


async def test_a_model_that_isnt_served_is_not_found(server: Server) -> None:
    status, body = await server.get("/v1/models/gpt-9")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_health_and_version(server: Server) -> None:
    for path in ("/health", "/ready", "/ping"):
        assert await server.get(path) == (200, {"status": "ok"})
    assert await server.get("/version") == (200, {"version": pyengine.__version__})


async def test_a_head_has_no_body(server: Server) -> None:
    async with server.http.head(server.url + "/health") as response:
        assert (response.status, await response.read()) == (200, b"")


async def test_there_are_no_embeddings(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="isn't a model for embeddings") as caught:
        await server.openai.embeddings.create(model=MODEL_NAME, input="a")
    assert caught.value.code == "not_an_embedding_model"


async def test_a_text_is_tokenized_and_back(server: Server) -> None:
    assert await server.post("/tokenize", {"prompt": "aé", "model": MODEL_NAME}) == (
        200,
        {"tokens": [BOS, 97, 0xC3, 0xA9], "count": 4, "max_model_len": 4096},
    )
    _, body = await server.post("/tokenize", {"prompt": "", "add_special_tokens": False})
    assert (body["tokens"], body["count"]) == ([], 0)
    assert await server.post("/detokenize", {"tokens": [BOS, 97, 0xC3, 0xA9, EOS]}) == (
        200,
        {"prompt": "<s>aé</s>"},
    )
    assert await server.post("/detokenize", {"tokens": []}) == (200, {"prompt": ""})


async def test_messages_are_tokenized_as_a_chat_would_be(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}
    _, answer = await server.post("/tokenize", body)
    assert bytes(answer["tokens"]) == b"[user]a[assistant]"
    _, answer = await server.post("/tokenize", {**body, "add_generation_prompt": False})
    assert bytes(answer["tokens"]) == b"[user]a"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": False},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": "a", "n": 1}, "n"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
async def test_what_cant_be_tokenized_is_refused(
    server: Server, path: str, body: object, param: str
) -> None:
    status, answer = await server.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]
)
async def test_an_unknown_model_is_not_found(
    server: Server, path: str, body: dict[str, object]
) -> None:
    status, answer = await server.post(path, {"model": "gpt-9", **body})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_a_request_keeps_the_id_that_it_came_with(server: Server) -> None:
    for path in ("/health", "/nowhere"):
        headers = {"X-Request-Id": "a-b.c:1"}
        async with server.http.get(server.url + path, headers=headers) as response:
            assert response.headers["X-Request-Id"] == "a-b.c:1"


@pytest.mark.parametrize("given", [None, "", "x" * 129, "a b", "é"])
async def test_a_request_without_a_proper_id_gets_one(server: Server, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-Id": given}
    async with server.http.get(server.url + "/health", headers=headers) as response:
        assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-Id"])


async def test_a_stream_carries_the_id_too(server: Server) -> None:
    async with server.http.post(
        server.url + "/v1/completions",
        json={"prompt": "a", "stream": True},
        headers={"X-Request-Id": "mine"},
    ) as response:
        assert response.headers["X-Request-Id"] == "mine"


async def test_requests_of_one_id_run_side_by_side(start_server: StartServer) -> None:
    engine = FakeAsyncEngine()
    server = await start_server(engine)
    for _ in range(2):
        async with server.http.post(
            server.url + "/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "same"}
        ) as response:
            assert response.status == 200
    first, second = engine.requests
    assert first.request_id != second.request_id
