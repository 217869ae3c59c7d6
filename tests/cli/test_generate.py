import io

import pytest

from pyengine.cli import main
from pyengine.sampling_params import SamplingParams
from tests.cli.fakes import FakeLLM


def test_one_prompt_is_streamed(llms: list[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m", "The capital is", "--temperature", "0", "--stop", "."]) == 0
    assert capsys.readouterr().out == "Paris, of course\n"
    params = SamplingParams(temperature=0, max_tokens=256, stop=(".",))
    assert llms[0].calls == [("stream", "The capital is", params)]


def test_a_prompt_may_stand_after_the_flags(llms: list[FakeLLM]) -> None:
    assert main(["generate", "m", "--max-tokens", "5", "Hello"]) == 0
    assert llms[0].calls == [("stream", "Hello", SamplingParams(max_tokens=5))]


def test_the_engine_gets_its_options(llms: list[FakeLLM]) -> None:
    assert main(["generate", "m", "p", "--block-size=8", "--kv-cache-bytes=1M", "--seed=7"]) == 0
    config = llms[0].config
    assert (config["model"], config["block_size"], config["kv_cache_bytes"]) == ("m", 8, 1 << 20)
    assert config["seed"] == llms[0].calls[0][2].seed == 7


def test_several_prompts_are_one_batch_printed_in_order(
    llms: list[FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "m", "a", "b"]) == 0
    assert [call[:2] for call in llms[0].calls] == [("generate", ["a", "b"])]
    assert capsys.readouterr().out == "=== prompt 1\ntext 0.0\n=== prompt 2\ntext 1.0\n"


def test_several_outputs_of_a_prompt_are_numbered(
    llms: list[FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "m", "a", "--n", "2"]) == 0
    assert capsys.readouterr().out == (
        "=== prompt 1, 1 of 2\ntext 0.0\n=== prompt 1, 2 of 2\ntext 0.1\n"
    )


def test_without_an_argument_the_prompt_is_read_from_standard_input(
    llms: list[FakeLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("line one\nline two\n"))
    assert main(["generate", "m"]) == 0
    assert llms[0].calls[0][1] == "line one\nline two"


def test_an_empty_standard_input_is_a_usage_error(
    llms: list[FakeLLM], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["generate", "m"]) == 2
    assert capsys.readouterr().err == "pyengine: error: the prompt on standard input is empty\n"
    assert llms == []


def test_a_terminal_as_standard_input_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.StringIO()
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["generate", "m"]) == 2
    assert "give a prompt, as an argument or on standard input" in capsys.readouterr().err


def test_help_does_not_speak_of_unset_where_the_command_sets_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--max-tokens N the most tokens to generate per sequence (default: 256)" in text
