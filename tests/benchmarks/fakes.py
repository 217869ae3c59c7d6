"""Servers of the tests, as the file of a comparison would describe them."""

import shlex
import sys
from pathlib import Path

from benchmarks.servers import ServerSpec

PROGRAM = Path(__file__).parent / "fake_server.py"
FAKE = f"{shlex.quote(sys.executable)} {shlex.quote(str(PROGRAM))}"
HTTP = ServerSpec("http", f"{FAKE} http {{port}}")
WORKER = ServerSpec("worker", f"{FAKE} worker", protocol="worker")
BROKEN = ServerSpec("broken", f"{FAKE} broken")
