"""From the port to the drain."""

import asyncio
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from pyengine.server.options import ServerOptions
from pyengine.server.serve import bind, run, serve, tls_context
from tests.server.conftest import read_events
from tests.server.fakes import MODEL_NAME, FakeAsyncEngine, answer

COMPLETIONS = "/v1/completions"


class Serving:
    """serve() in a task of this loop, and a client of it."""

    def __init__(self, engine: FakeAsyncEngine, **options: Any) -> None:
        self.engine = engine
        self._options = ServerOptions(
            **{"served_model_names": (MODEL_NAME,), "port": 0, "shutdown_timeout": 10.0, **options}
        )

    async def __aenter__(self) -> "Serving":
        self._socket = bind(self._options)
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(
            serve(
                self.engine,
                self._options,
                self._socket,
                tls_context(self._options),
                ready.set_result,
            )
        )
        self.url = await ready
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])
        self._socket.close()

    async def get(self, path: str) -> int:
        async with self.http.get(self.url + path) as response:
            return response.status

    async def post(self, **fields: object) -> tuple[int, Any]:
        body = {"prompt": "a", **fields}
        async with self.http.post(self.url + COMPLETIONS, json=body) as response:
            data = await response.read()
            if response.content_type == "text/event-stream":
                return response.status, read_events(data)
            return response.status, await response.json()

    async def start_streams(self, number: int) -> list[asyncio.Task[tuple[int, Any]]]:
        """Streams that have sent their first chunk."""
        calls = [asyncio.create_task(self.post(stream=True)) for _ in range(number)]
        await self.engine.until(lambda: len(self.engine.open) == number)
        self.engine.step()
        return calls

    async def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(os.getpid(), number)
        await self.engine.until(lambda: self.engine.is_draining)


async def test_it_says_where_it_serves_and_serves_there() -> None:
    async with Serving(FakeAsyncEngine()) as serving:
        assert serving.url.startswith("http://127.0.0.1:")
        assert await serving.get("/health") == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_ends_at_the_signal(number: int) -> None:
    async with Serving(FakeAsyncEngine()) as serving:
        await serving.signal(number)
        assert await serving.task == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await serving.get("/health")


async def test_at_the_signal_streams_finish_and_newcomers_are_refused() -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True)
    async with Serving(engine) as serving:
        calls = await serving.start_streams(2)
        await serving.signal()
        status, body = await serving.post()
        assert (status, body["error"]["code"]) == (503, "shutting_down")
        assert body["error"]["type"] == "server_error"
        assert await serving.get("/health") == 503
        assert await serving.get("/metrics") == 200
        engine.release()
        for call in calls:
            status, [*chunks, done] = await call
            assert (status, done) == (200, "[DONE]")
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
        assert await serving.task == 0


async def test_the_log_tells_what_the_signal_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pyengine")
    engine = FakeAsyncEngine(answer("abc"), held=True)
    async with Serving(engine) as serving:
        calls = await serving.start_streams(2)
        await serving.signal()
        engine.release()
        await asyncio.gather(*calls)
        assert await serving.task == 0
    assert caplog.messages == [
        "shutting down: 2 open sequences may go on for 10 s",
        "the server has ended",
    ]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_changes_nothing(second: int) -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True)
    async with Serving(engine) as serving:
        [call] = await serving.start_streams(1)
        await serving.signal()
        await serving.signal(second)
        assert await serving.get("/health") == 503  # the loop has seen the signal by now
        assert not call.done()
        engine.release()
        status, events = await call
        assert (status, events[-1]) == (200, "[DONE]")
        assert await serving.task == 0


async def test_at_the_limit_the_rest_get_an_error() -> None:
    engine = FakeAsyncEngine(answer("abc"), held=True)
    async with Serving(engine, shutdown_timeout=0.05) as serving:
        [stream] = await serving.start_streams(1)
        whole = asyncio.create_task(serving.post())
        await engine.until(lambda: len(engine.open) == 2)
        await serving.signal()
        status, [chunk, error] = await stream
        assert (status, chunk["choices"][0]["text"]) == (200, "a")
        assert error["error"]["code"] == "engine_stopped"
        status, body = await whole
        assert (status, body["error"]["code"]) == (503, "engine_stopped")
        assert await serving.task == 0


async def test_a_dead_engine_ends_the_server_with_a_status_that_says_so() -> None:
    engine = FakeAsyncEngine(held=True)
    async with Serving(engine) as serving:
        call = asyncio.create_task(serving.post())
        await engine.until(lambda: len(engine.open) == 1)
        engine.die()
        status, body = await call
        assert status == 500
        assert "the roof fell in" in body["error"]["message"]
        assert await serving.task == 1


def test_a_signal_that_comes_after_the_last_stream_does_not_change_the_status() -> None:
    script = """if True:
        import os, signal, sys
        from pyengine.server.options import ServerOptions
        from pyengine.server.serve import run
        from tests.server.fakes import FakeAsyncEngine

        options = ServerOptions(served_model_names=("m",), port=0)
        status = run(FakeAsyncEngine, options, lambda url: os.kill(os.getpid(), signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        sys.exit(status)
    """
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


async def test_it_serves_on_a_unix_socket_and_removes_it(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    for _ in range(2):
        async with Serving(FakeAsyncEngine(), uds=path) as serving:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as http,
                http.get(serving.url + "/health") as response,
            ):
                assert response.status == 200
            await serving.signal()
            assert await serving.task == 0
        assert not os.path.exists(path)


def test_an_abandoned_unix_socket_is_taken_over_and_one_in_use_is_not(tmp_path: Path) -> None:
    options = ServerOptions(served_model_names=("m",), uds=str(tmp_path / "socket"))
    bind(options).close()  # leaves its file
    with bind(options) as sock:
        sock.listen()
        with pytest.raises(OSError, match=r"can't listen on uds .*: Address already in use"):
            bind(options)
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(OSError, match="Address already in use"):
        bind(ServerOptions(served_model_names=("m",), uds=str(path)))
    assert path.read_text() == "precious"


async def test_it_serves_https(tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    pair.write_to_path(str(tmp_path / "pair.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with Serving(FakeAsyncEngine(), ssl_certfile=str(tmp_path / "pair.pem")) as serving:
        assert serving.url.startswith("https://127.0.0.1:")
        async with serving.http.get(serving.url + "/health", ssl=context) as response:
            assert response.status == 200


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_bad_certificate_is_told_before_the_model_is_loaded(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "cert.pem"
    if text is not None:
        path.write_text(text)
    options = ServerOptions(served_model_names=("m",), port=0, ssl_certfile=str(path))
    with pytest.raises(OSError, match=r"can't serve HTTPS with .*cert\.pem: "):
        run(lambda: pytest.fail("it was loaded"), options, print)


@pytest.mark.parametrize("is_unix", [False, True])
def test_while_the_model_is_loaded_it_answers_that_it_is_starting(
    tmp_path: Path, is_unix: bool
) -> None:
    """run() itself, in a process of its own: it ends with the signals ignored."""
    code = """
import os, signal, socket, sys
from pyengine.server.options import ServerOptions
from pyengine.server.serve import run
from tests.server.fakes import FakeAsyncEngine

def ask(address, path):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as sock:
        sock.connect(address)
        sock.sendall(f"GET {path} HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n".encode())
        return sock.makefile("rb").read().decode()

uds = sys.argv[1] or None
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]

def load():
    for path in ("/ready", "/health", "/v1/models"):
        answer = ask(uds or ("127.0.0.1", port), path)
        assert answer.startswith("HTTP/1.0 503 "), answer
        assert "Retry-After: 1" in answer and '"code": "starting"' in answer, answer
        assert "X-Request-Id: " in answer, answer
    return FakeAsyncEngine()

def on_ready(url):
    import threading
    def check():
        answer = ask(uds or ("127.0.0.1", port), "/ready")
        assert answer.startswith("HTTP/1.0 200 "), answer
        print("ready")
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=check).start()

options = ServerOptions(served_model_names=("m",), port=port, uds=uds)
sys.exit(run(load, options, on_ready))
"""
    uds = str(tmp_path / "socket") if is_unix else ""
    done = subprocess.run([sys.executable, "-c", code, uds], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"ready\n"), done.stderr.decode()


def test_a_port_in_use_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ServerOptions(served_model_names=("m",), port=taken.getsockname()[1])
        message = (
            f"can't listen on host 127.0.0.1, port {options.port}: Address already in use; "
            "choose another port"
        )
        with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
            run(lambda: pytest.fail("loaded"), options, lambda url: None)


def test_an_address_of_another_machine_is_told_by_name() -> None:
    options = ServerOptions(served_model_names=("m",), host="192.0.2.1", port=0)
    with pytest.raises(OSError, match=r"^can't listen on host 192\.0\.2\.1.*another host$"):
        bind(options)


def test_a_host_that_no_name_server_knows_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(OSError, match=r"^can't listen on host nowhere, port 0: Name .*known"):
        bind(ServerOptions(served_model_names=("m",), host="nowhere", port=0))


def test_ipv6_addresses_are_served_too() -> None:
    with bind(ServerOptions(served_model_names=("m",), host="::1", port=0)) as sock:
        assert sock.family == socket.AF_INET6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"served_model_names": ()}, "at least one name"),
        ({"port": -1}, "port must be in 0..65535, got -1"),
        ({"port": 65536}, "port must be in 0..65535, got 65536"),
        ({"shutdown_timeout": -1.0}, "shutdown_timeout must be at least 0, got -1"),
        ({"shutdown_timeout": float("nan")}, "shutdown_timeout must be at least 0, got nan"),
        ({"health_timeout": 0.0}, "health_timeout must be above 0, got 0"),
        ({"max_body_bytes": 0}, "max_body_bytes must be at least 1, got 0"),
    ],
)
def test_options_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerOptions(**{"served_model_names": ("m",), **fields})
