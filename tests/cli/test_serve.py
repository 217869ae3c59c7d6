"""What `pyengine serve` hands to the server, and what it prints."""

import gc
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyengine.cli import main
from pyengine.server import serve as server
from pyengine.server.options import ServerOptions


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServerOptions]]:
    """The options of every server that was run; it is ready at once."""
    made: list[ServerOptions] = []

    def run(
        load_engine: Callable[[], Any], options: ServerOptions, on_ready: Callable[[str], None]
    ) -> int:
        made.append(options)
        on_ready("http://127.0.0.1:8000")
        return 0

    monkeypatch.setattr(server, "run", run)
    yield made
    gc.unfreeze()


def request_of(line: str) -> tuple[str, dict[str, Any]]:
    """The URL and the body of a curl line."""
    command, url, *words = shlex.split(line)
    assert command == "curl"
    return url, json.loads(words[words.index("-d") + 1])


def test_the_model_is_served_under_the_name_it_was_given_by(served: list[ServerOptions]) -> None:
    assert main(["serve", "org/name", "--port", "81"]) == 0
    assert served == [ServerOptions(served_model_names=("org/name",), port=81)]


def test_what_the_start_made_is_left_out_of_garbage_collections(
    served: list[ServerOptions],
) -> None:
    made_before = [[]]
    assert main(["serve", "org/name"]) == 0
    assert gc.isenabled()
    assert not any(o is made_before for o in gc.get_objects())


def test_the_model_may_have_other_names(served: list[ServerOptions]) -> None:
    argv = ["serve", "--served-model-name", "a", "--served-model-name", "b", "org/name"]
    assert main(argv) == 0
    assert served[0].served_model_names == ("a", "b")


def test_the_printed_curl_line_is_a_chat_request_that_a_shell_can_read(
    served: list[ServerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "it's"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("curl ")]
    url, body = request_of(line)
    assert url == "http://127.0.0.1:8000/v1/chat/completions"
    assert body["model"] == "it's"
    assert body["messages"][0]["role"] == "user"


def test_the_readme_shows_the_curl_line_that_is_printed(
    served: list[ServerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "smollm2-135m-instruct"]) == 0
    printed = capsys.readouterr().out.partition("\n\n")[2]
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = readme.partition("    $ ")[2].partition("\n\n")[0]
    assert request_of(shown) == request_of(printed)


def test_the_printed_curl_line_takes_the_key_and_the_socket_but_does_not_show_the_key(
    served: list[ServerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "m", "--api-key", "secret", "--uds", "/run/a b"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("curl ")]
    words = shlex.split(line)
    assert words[words.index("--unix-socket") + 1] == "/run/a b"
    assert "Authorization: Bearer $PYENGINE_API_KEY" in words
    assert "secret" not in line


def test_a_model_that_is_not_there_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "./missing.gguf", "--port", "0"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("pyengine: error: ")
    assert "missing.gguf" in line
    assert gc.isenabled()


def test_an_unknown_quantization_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["serve", "m", "--quantization", "int3"])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    for name in ("int3", "auto", "none", "int8", "int4"):
        assert name in error
