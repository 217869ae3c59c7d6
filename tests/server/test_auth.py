"""A server with API keys answers those who have one."""

import openai
import pytest

from tests.server.conftest import Server, StartServer
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine

KEYS = ("key-one", "key-two")


@pytest.fixture
async def locked(start_server: StartServer) -> Server:
    return await start_server(FakeAsyncEngine(), api_keys=KEYS)


async def status_of(server: Server, path: str, headers: dict[str, str]) -> int:
    async with server.http.get(server.url + path, headers=headers) as response:
        return response.status


@pytest.mark.parametrize("key", KEYS)
async def test_each_key_opens_the_server_to_the_openai_client(locked: Server, key: str) -> None:
    client = locked.openai.with_options(api_key=key)
    answer = await client.completions.create(model=MODEL_NAME, prompt="a")
    assert answer.choices[0].text == "0A"


async def test_the_openai_client_knows_the_401(locked: Server) -> None:
    with pytest.raises(openai.AuthenticationError, match="the API key is wrong") as caught:
        await locked.openai.completions.create(model=MODEL_NAME, prompt="a")
    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["WWW-Authenticate"] == "Bearer"


async def test_a_key_may_come_in_anthropics_header(locked: Server) -> None:
    assert await status_of(locked, "/v1/models", {"X-Api-Key": "key-two"}) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic key-one"},
        {"Authorization": "Bearer key-on"},
        {"Authorization": "Bearer key-onee"},
        {"Authorization": "Bearer k\u00e9y"},
        {"Authorization": "Bearer key-one, key-two"},
        {"X-Api-Key": ""},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/made/up"])
async def test_without_a_key_nothing_is_told(
    locked: Server, path: str, headers: dict[str, str]
) -> None:
    async with locked.http.get(locked.url + path, headers=headers) as response:
        assert response.status == 401
        assert (await response.json())["error"]["code"] == "invalid_api_key"
    assert locked.engine.requests == []


async def test_monitors_need_no_key(locked: Server) -> None:
    for path in ("/health", "/metrics", "/version"):
        assert await status_of(locked, path, {}) == 200
