from pathlib import Path

import pytest

from pyengine import weights
from pyengine.cli import main


def test_pull_prints_where_the_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str | None]] = []

    def resolve_model(name: str, *, revision: str | None = None) -> Path:
        asked.append((name, revision))
        return tmp_path

    monkeypatch.setattr(weights, "resolve_model", resolve_model)
    assert main(["pull", "org/name", "--revision", "main"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"
    assert asked == [("org/name", "main")]


def test_a_model_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.gguf"
    assert main(["pull", str(missing)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("pyengine: error: ")
    assert "missing.gguf" in line
