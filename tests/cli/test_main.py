"""The command as a whole: its words, its exit status, and how it reports an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyengine
from pyengine.cli import main, pull
from pyengine.cli.main import COMMANDS
from pyengine.errors import ModelLoadError, StepFailedError
from tests.cli.fakes import FakeLLM


def _exit_status(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as exit_info:
        main(argv)
    status = exit_info.value.code
    assert isinstance(status, int)
    return status


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_status(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command} " in text


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_status(["--version"]) == 0
    assert capsys.readouterr().out == f"pyengine {pyengine.__version__}\n"


@pytest.mark.parametrize("argv", [["--version"], ["--help"], *([name, "-h"] for name in COMMANDS)])
def test_help_and_version_import_neither_torch_nor_aiohttp(argv: list[str]) -> None:
    script = (
        "import sys\n"
        "from pyengine.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    heavy = {'torch', 'numpy', 'aiohttp', 'pydantic', 'asyncio'} & set(sys.modules)\n"
        "    print(sorted(heavy), file=sys.stderr)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *argv],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(pyengine.__file__).parents[1],
    )
    assert run.stderr == "[]\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND (see pyengine --help)"),
        (["serve"], "the following arguments are required: MODEL (see pyengine serve --help)"),
        (
            ["pull", "m", "--revisoin", "x"],
            "unrecognized arguments: --revisoin x (see pyengine pull --help)",
        ),
        (
            ["serve", "m", "--port", "http"],
            "argument --port: invalid int value: 'http' (see pyengine serve --help)",
        ),
    ],
)
def test_a_command_line_that_does_not_parse_is_one_line_and_status_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_status(argv) == 2
    assert capsys.readouterr().err == f"pyengine: error: {message}\n"


def test_an_unknown_command_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_status(["server", "m"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "invalid choice: 'server'" in line
    assert all(command in line for command in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "m", "--max-num-seqs", "0"], "--max-num-seqs must be at least 1, got 0"),
        (["generate", "m", "p", "--top-p", "0"], "--top-p must be in (0, 1], got 0.0"),
        (["bench", "m", "--repeats", "0"], "--repeats must be at least 1, got 0"),
    ],
)
def test_a_value_out_of_range_is_one_line_and_status_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == f"pyengine: error: {message}\n"


@pytest.mark.parametrize(
    "error",
    [
        ModelLoadError("m: no such model"),
        ValueError("max_model_len must be at most 64, got 65"),
        OSError("disk full"),
        ImportError("pyengine's operator library is not built"),
        StepFailedError("step 3 failed"),
    ],
)
def test_what_goes_wrong_at_run_time_is_one_line_and_status_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(**config: object) -> None:
        raise error

    monkeypatch.setitem(vars(pyengine), "LLM", make)
    assert main(["generate", "m", "p"]) == 1
    assert capsys.readouterr().err == f"pyengine: error: {error}\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**config: object) -> None:
        raise RuntimeError("block 7 is held twice")

    monkeypatch.setitem(vars(pyengine), "LLM", make)
    with pytest.raises(RuntimeError, match="block 7"):
        main(["generate", "m", "p"])


def test_ctrl_c_ends_with_status_130(llms: list[FakeLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: FakeLLM, prompt: object, params: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeLLM, "stream", interrupt)
    assert main(["generate", "m", "p"]) == 130


def test_a_reader_of_the_output_that_goes_away_gets_no_traceback() -> None:
    """The interpreter's last flush once printed one, after `pyengine --help | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "pyengine", "--help"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=Path(pyengine.__file__).parents[1],
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (1, "")


@pytest.mark.parametrize(("given", "expected"), [(None, "passive"), ("active", "active")])
def test_openmp_threads_sleep_when_idle_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    seen = []
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(pull, "run", lambda args: seen.append(os.environ["OMP_WAIT_POLICY"]) or 0)
    assert main(["pull", "org/name"]) == 0
    assert seen == [expected]
