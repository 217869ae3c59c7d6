"""Browsers let pages of the allowed origins use the server, and no others."""

import pytest

from tests.server.conftest import Server, StartServer
from tests.server.fakes import FakeAsyncEngine

ORIGIN, OTHER = "https://page.example", "https://other.example"
PATH = "/v1/completions"


async def ask_first(server: Server, origin: str) -> dict[str, str]:
    """The headers that a browser gets to its first question."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    async with server.http.options(server.url + PATH, headers=headers) as response:
        assert response.status == 204
        return dict(response.headers)


@pytest.mark.parametrize("allowed", [ORIGIN, "*"])
async def test_an_allowed_page_may_ask(start_server: StartServer, allowed: str) -> None:
    server = await start_server(FakeAsyncEngine(), allowed_origins=(allowed,), api_keys=("key",))
    headers = await ask_first(server, ORIGIN)
    assert headers["Access-Control-Allow-Origin"] == ORIGIN
    assert headers["Access-Control-Allow-Methods"] == "POST"
    assert headers["Access-Control-Allow-Headers"] == "authorization, content-type"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ""])
async def test_it_may_read_answers_streams_and_errors(
    start_server: StartServer, stream: bool, prompt: str
) -> None:
    server = await start_server(FakeAsyncEngine(), allowed_origins=(ORIGIN,))
    async with server.http.post(
        server.url + PATH,
        json={"prompt": prompt or 3, "stream": stream},
        headers={"Origin": ORIGIN},
    ) as response:
        assert response.status == (200 if prompt else 400)
        assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]
        assert response.headers["Vary"] == "Origin"


async def test_other_pages_may_not(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(), allowed_origins=(ORIGIN,))
    headers = await ask_first(server, OTHER)
    assert not [name for name in headers if name.startswith("Access-Control")]


async def test_by_default_no_page_may(server: Server) -> None:
    headers = await ask_first(server, ORIGIN)
    assert not [name for name in headers if name.startswith("Access-Control")]


async def test_options_tells_the_methods_of_a_path(server: Server) -> None:
    async with server.http.options(server.url + "/health") as response:
        assert (response.status, response.headers["Allow"]) == (204, "GET, HEAD")
    async with server.http.options(server.url + "/made/up") as response:
        assert response.status == 404
