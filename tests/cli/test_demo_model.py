"""The commands on a real model, with the options that they have by default.

The texts are the same in every dtype, on dequantized weights too: no token of theirs is a close
call.
"""

import io
import json
from pathlib import Path

import pytest

from pyengine.cli import main

ENGINE = ["--num-kv-blocks=64"]


def test_generate_continues_a_text(
    demo_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", str(demo_model_path), "The largest planet of the solar system is"]
    assert main([*argv, "--temperature=0", "--max-tokens=5", *ENGINE]) == 0
    assert capsys.readouterr().out == " Jupiter, but it's\n"


def test_chat_answers(
    demo_model_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("What is the capital of Japan?\n/exit\n"))
    assert main(["chat", str(demo_model_path), "--temperature=0", *ENGINE]) == 0
    assert capsys.readouterr().out == "The capital of Japan is Tokyo.\n"


def test_bench_measures(demo_model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", str(demo_model_path), "--batch-sizes", "2", "--output-len=4", "--repeats=1"]
    assert main([*argv, "--prefill-len=64", "--json", *ENGINE]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert set(numbers) == {
        "time_to_first_token_from_start_s",
        "decode_tokens_per_s_batch_2",
        "prefill_tokens_per_s_64",
        "max_rss_mb",
    }
    assert all(value > 0 for value in numbers.values())


def test_a_length_that_the_model_was_not_made_for_is_one_line(
    demo_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(demo_model_path), "p", "--max-model-len=100000", *ENGINE]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("pyengine: error: max_model_len must be at most 8192")


def test_quantizing_what_is_quantized_is_one_line(
    demo_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(demo_model_path), "p", *ENGINE, "--quantization=int8"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("pyengine: error: quantization must be auto or none for ")
