"""The servers that `compare` measures: what a file says of them, and their processes."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import time
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.serving_load import Exchange, Load, run_load

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.02
RSS_INTERVAL_S = 0.2
LOG_TAIL = 2000  # characters of a server's log that an error shows


class ServerError(Exception):
    """A server didn't start, or died. The message has the end of its log."""


@dataclass(frozen=True)
class ServerSpec:
    """How to start a server, from a table of the file; see benchmarks/README.md."""

    name: str
    command: str  # split as a shell does; {port} is the port to listen on
    small_pool: str | None = None  # arguments that give it a KV cache of 2,560 tokens
    protocol: str = "http"  # or "worker": loads through its input, as openvino_worker.py
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.protocol not in ("http", "worker"):
            raise ValueError(f"{self.name}: protocol must be http or worker, got {self.protocol!r}")


def read_specs(path: Path) -> tuple[list[ServerSpec], list[ServerSpec]]:
    """Our servers and their peers, in the order of the file.

    Raises:
        ValueError: the file isn't TOML, or a table has a wrong or missing key.
    """
    try:
        document = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    if unknown := set(document) - {"ours", "peers"}:
        raise ValueError(f"{path}: expected tables ours.NAME and peers.NAME, got {unknown}")
    try:
        ours, peers = (
            [ServerSpec(name, **table) for name, table in document.get(side, {}).items()]
            for side in ("ours", "peers")
        )
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error
    return ours, peers


class Server:
    """A running server: a process group that is stopped (SIGSTOP) while others are measured.

    Args:
        small_pool: start it with the arguments of the spec's `small_pool`.
        log: the file that its output goes to.
    """

    def __init__(self, spec: ServerSpec, log: Path, *, small_pool: bool = False) -> None:
        self.spec = spec
        self._log = log
        self._arguments = shlex.split(spec.command)
        if small_pool:
            self._arguments += shlex.split(spec.small_pool or "")
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""  # of a started server that speaks HTTP, without /v1

    @property
    def pid(self) -> int:
        """Of the process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> float:
        """Starts the process and returns the seconds until it was ready.

        Raises:
            ServerError: it ended, or wasn't ready in time.
        """
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        start = time.perf_counter()
        with self._log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(argument.replace("{port}", str(port)) for argument in self._arguments),
                    env=os.environ | self.spec.env,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE if self.spec.protocol == "worker" else log,
                    stderr=log,
                    start_new_session=True,
                    limit=2**26,  # of a line that a worker prints
                )
            except OSError as error:
                raise ServerError(f"{self.spec.name}: {error}") from error
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                if self.spec.protocol == "worker":
                    await self._read_line()
                else:
                    await self._wait_for_health()
        except TimeoutError:
            raise self._error("wasn't ready in time") from None
        return time.perf_counter() - start

    async def run(self, load: Load) -> list[Exchange]:
        """Sends a load. See `run_load`.

        Raises:
            ServerError: the server has died.
        """
        self._check_alive()
        if self.spec.protocol == "http":
            return await run_load(self.url, load)
        assert self._process is not None
        assert self._process.stdin is not None
        order = {
            "prompts": load.prompts(),
            "concurrency": load.concurrency,
            "output_len": load.output_len,
        }
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return [_exchange(load, result) for result in json.loads(await self._read_line())]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The server runs inside of the block, and holds still after it."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    @contextlib.asynccontextmanager
    async def watching_rss(self) -> AsyncIterator[list[int]]:
        """Yields a list that, after the block, holds the bytes of resident memory of the server's
        processes together, several times a second."""
        sizes: list[int] = []

        async def watch() -> None:
            while True:
                sizes.append(self._rss_bytes())
                await asyncio.sleep(RSS_INTERVAL_S)

        watcher = asyncio.create_task(watch())
        try:
            yield sizes
        finally:
            watcher.cancel()
            sizes.append(self._rss_bytes())

    async def stop(self) -> None:
        """Ends the process and waits for its end; does nothing if there is none."""
        if self._process is None or self._process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    async def _wait_for_health(self) -> None:
        async with aiohttp.ClientSession(self.url) as session:
            while True:
                self._check_alive()
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get("/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(POLL_INTERVAL_S)

    async def _read_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise self._error("ended")
        return line

    def _check_alive(self) -> None:
        assert self._process is not None
        if self._process.returncode is not None:
            raise self._error(f"ended with status {self._process.returncode}")

    def _error(self, what: str) -> ServerError:
        tail = self._log.read_text(errors="replace")[-LOG_TAIL:]
        return ServerError(f"{self.spec.name} {what}; the end of {self._log}:\n{tail}")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _rss_bytes(self) -> int:
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.pid)
            for process in [root, *root.children(recursive=True)]:
                total += process.memory_info().rss
        return total


def _exchange(load: Load, result: dict[str, Any]) -> Exchange:
    return Exchange(
        start_s=result["start_s"],
        event_times_s=result["times_s"],
        text=" ".join(map(str, result["token_ids"])),
        num_prompt_tokens=load.input_len,
        num_output_tokens=len(result["token_ids"]),
    )


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
