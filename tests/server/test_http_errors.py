"""What is wrong with a request before its fields are looked at: its bytes, headers and path."""

import asyncio
import gzip
import json
import re
from typing import Any

import pytest

from tests.server.conftest import Server, StartServer, check_error
from tests.server.fakes import FakeAsyncEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ALL_POSTS = (COMPLETIONS, CHAT, "/tokenize", "/detokenize")


@pytest.mark.parametrize("path", ALL_POSTS)
@pytest.mark.parametrize("data", [b"[]", b"null", b'"x"', b"3", b"true"])
async def test_a_body_must_be_an_object(server: Server, path: str, data: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with server.http.post(server.url + path, data=data, headers=headers) as response:
        assert response.status == 400
        got = data.decode()
        check_error(await response.json(), f"the body must be a JSON object, got {got}")


@pytest.mark.parametrize("path", ALL_POSTS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"prompt": }',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": 01}',
        b"[" * 100_000,
        b'{"prompt": "a"} x',
    ],
)
async def test_broken_json_is_refused(server: Server, path: str, data: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with server.http.post(server.url + path, data=data, headers=headers) as response:
        assert response.status == 400
        check_error(await response.json(), "the body isn't valid JSON")


@pytest.mark.parametrize("path", ALL_POSTS)
@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
async def test_another_content_type_is_refused(
    server: Server, path: str, content_type: str
) -> None:
    headers = {"Content-Type": content_type}
    async with server.http.post(server.url + path, data=b"{}", headers=headers) as response:
        assert response.status == 415
        message = "Content-Type must be application/json, got "
        check_error(await response.json(), message, code="unsupported_media_type")


@pytest.mark.parametrize("charset", ["", "; charset=utf-8"])
async def test_json_may_name_its_charset(server: Server, charset: str) -> None:
    headers = {"Content-Type": f"application/json{charset}"}
    data = json.dumps({"prompt": "é"}, ensure_ascii=False).encode()
    async with server.http.post(server.url + COMPLETIONS, data=data, headers=headers) as response:
        assert response.status == 200


@pytest.mark.parametrize("data", [gzip.compress(b'{"prompt": "a"}'), b"{}"])
async def test_a_compressed_body_is_refused(server: Server, data: bytes) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with server.http.post(server.url + COMPLETIONS, data=data, headers=headers) as response:
        assert response.status == 415
        check_error(
            await response.json(),
            "Content-Encoding must be left out, got gzip",
            code="unsupported_media_type",
        )


async def test_an_unknown_path_is_not_found(server: Server) -> None:
    status, body = await server.get("/v2/completions")
    assert status == 404
    check_error(body, "no such endpoint: GET /v2/completions", code="not_found")


async def test_another_method_is_refused_with_the_right_one(server: Server) -> None:
    async with server.http.get(server.url + COMPLETIONS) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        body = await response.json()
    check_error(body, "/v1/completions takes POST, got GET", code="method_not_allowed")


async def test_a_body_that_is_too_large_is_refused(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(), max_body_bytes=1000)
    status, body = await server.post(COMPLETIONS, {"prompt": "a" * 1000})
    assert status == 413
    check_error(body, "the body is too large", code="body_too_large")
    status, _ = await server.post(COMPLETIONS, {"prompt": "a" * 900})
    assert status == 200


async def test_a_body_that_is_announced_as_too_large_is_not_waited_for(server: Server) -> None:
    head, body = await exchange(
        server,
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99999999\r\n\r\n",
    )
    assert head.startswith("HTTP/1.1 413 ")
    check_error(body, "the body is too large", code="body_too_large")


async def test_a_body_that_does_not_come_is_given_up(start_server: StartServer) -> None:
    server = await start_server(FakeAsyncEngine(), body_timeout=0.01)
    head, body = await exchange(
        server,
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b'Content-Length: 100\r\n\r\n{"prompt":',
    )
    assert head.startswith("HTTP/1.1 408 ")
    assert "Connection: close" in head
    check_error(body, "the body hasn't come within 0.01 s", code="body_timeout")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # the beginning of TLS
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: many\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_an_error_object(server: Server, data: bytes) -> None:
    head, body = await exchange(server, data)
    assert re.match(r"HTTP/1.[01] 400 ", head)
    assert re.search(r"\r\nX-Request-Id: [0-9a-f]{32}\r\n", head)
    check_error(body, "malformed HTTP: ", code="malformed_http")
    assert await server.get("/health") == (200, {"status": "ok"})


async def test_an_expectation_that_cannot_be_met_is_answered(server: Server) -> None:
    """It met no middleware, so it had no id, and the answer failed for want of one."""
    headers = {"Expect": "a miracle", "X-Request-Id": "mine"}
    async with server.http.get(server.url + "/health", headers=headers) as response:
        assert response.status == 417
        assert response.headers["X-Request-Id"] == "mine"


async def exchange(server: Server, data: bytes) -> tuple[str, Any]:
    """Sends bytes to a server that closes the connection -> the head and the JSON it answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    match = re.search(rb"Content-Length: (\d+)", head)
    assert match is not None
    body = await reader.readexactly(int(match[1]))
    writer.close()
    return head.decode(), json.loads(body)


async def test_a_surprise_is_a_500_that_gives_nothing_away(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(text: str, **options: bool) -> list[int]:
        raise RuntimeError("a secret")

    monkeypatch.setattr(server.engine.tokenizer, "encode", encode)
    status, body = await server.post(COMPLETIONS, {"prompt": "a"})
    assert status == 500
    error = body["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "a secret" not in error["message"]
    assert "a secret" in caplog.text
    request_id = error["message"].removeprefix("internal error (request ").removesuffix(")")
    assert request_id in caplog.text
