"""The wheel: what is in it, and that it serves a model away from the source tree."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

import pyengine

SOURCE = Path(__file__).parents[1]
# What a source distribution would hold; what was built in the tree is left out.
SOURCE_NAMES = ["csrc", "pyengine", "setup.py", "pyproject.toml", "README.md", "LICENSE"]
EXTENSION = re.compile(r"pyengine/(_core|_ops)\..*\.so")
START_TIMEOUT_S = 300
QUESTION = "What is the capital of Japan?"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in SOURCE_NAMES:
        if (SOURCE / name).is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(SOURCE / name, source / name, ignore=ignored)
        else:
            shutil.copy(SOURCE / name, source / name)
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation"]
    subprocess.run([*command, "--no-deps", f"--wheel-dir={folder}", source], check=True)
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it, which finds the rest in the one that runs the
    tests. The .pth files of that one, an editable install of pyengine among them, are not read."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    site_packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site_packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", f"--python={folder / 'bin' / 'python'}"]
    options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    subprocess.run([*pip, "install", *options, wheel], check=True)
    return folder


@pytest.fixture
def server_url(environment: Path, demo_model_path: Path, tmp_path: Path) -> Iterator[str]:
    """A server that the installed command runs on a free port; it must end well at SIGTERM."""
    command = [environment / "bin" / "pyengine", "serve", "smollm2-135m-instruct", "--port=0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=_clean_env(), stdout=subprocess.PIPE, text=True
    ) as process:
        watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found, "the server ended before it was ready"
            yield found[0]
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()
            watchdog.cancel()


def _clean_env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"{path.relative_to(SOURCE)}" for path in (SOURCE / "pyengine").rglob("*.py")}
    assert modules | {"pyengine/py.typed", "pyengine/server/docs.html"} <= names
    assert {match[1] for name in names if (match := EXTENSION.fullmatch(name))} == {"_core", "_ops"}
    rest = {name for name in names - modules if ".dist-info/" not in name}
    assert {Path(name).suffix for name in rest} <= {".so", ".typed", ".pyi", ".html"}


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 10 * 2**20


def test_the_installed_package_comes_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    script = "import pyengine.ops, pyengine._core; print(pyengine.__file__, pyengine.__version__)"
    run = subprocess.run(
        [environment / "bin" / "python", "-c", script],
        cwd=tmp_path,
        env=_clean_env(),
        capture_output=True,
        text=True,
        check=True,
    )
    file, version = run.stdout.split()
    assert Path(file).is_relative_to(environment)
    assert version == pyengine.__version__


def test_the_installed_command_serves_the_demo_model_to_the_openai_client(server_url: str) -> None:
    question = [{"role": "user", "content": QUESTION}]
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none") as client:
        [model] = client.models.list().data
        assert model.id == "smollm2-135m-instruct"
        whole = client.chat.completions.create(
            model=model.id, messages=question, temperature=0, max_tokens=32
        )
        chunks = client.chat.completions.create(
            model=model.id, messages=question, temperature=0, max_tokens=32, stream=True
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "Tokyo" in streamed
    assert streamed == whole.choices[0].message.content
