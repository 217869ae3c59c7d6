import pytest

from pyengine import verify
from pyengine.cli import main
from pyengine.config import EngineConfig
from pyengine.engine import loading
from tests.tiny import tiny_model


@pytest.fixture(autouse=True)
def configs(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """Every config that a model was loaded for; it is the tiny one whatever they say."""
    made: list[EngineConfig] = []

    def load(config: EngineConfig, show_progress: bool):
        made.append(config)
        return tiny_model()

    monkeypatch.setattr(loading, "load", load)
    return made


def test_verify_says_what_it_tried_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "tiny", "--max-tokens", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"tiny: torch.float32, {lines[0].split(', ')[1]}, fp_tiny"
    assert lines[1].startswith("6 prompts under 15 schedules")
    assert all(line.endswith(" preemptions: equal") for line in lines[2:-1])
    assert len(lines) == 2 + 15 + 1
    assert lines[-1] == "PASS: every bit is the same"


def test_verify_names_the_first_difference_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = verify.reference_digests

    def wrong(*arguments):
        digests = right(*arguments)
        digests["prompt 1", 0, 2] = b"other bits"
        return digests

    monkeypatch.setattr(verify, "reference_digests", wrong)
    assert main(["verify", "tiny", "--max-tokens", "4"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith("DIFFERENT")
    assert lines[-1] == "FAIL: prompt 1, the logits after token 2 differ first"


def test_what_decides_the_bits_can_be_chosen(configs: list[EngineConfig]) -> None:
    argv = "--dtype=float32 --quantization=int4 --max-model-len=99 --kv-cache-dtype=int8"
    assert main(["verify", "tiny", "--max-tokens=1", *argv.split()]) == 0
    assert configs == [
        EngineConfig(
            model="tiny",
            dtype="float32",
            quantization="int4",
            max_model_len=99,
            kv_cache_dtype="int8",
        )
    ]


@pytest.mark.parametrize("max_tokens", [0, 2048])
def test_max_tokens_that_leave_no_room_for_a_prompt_are_refused(
    max_tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "tiny", f"--max-tokens={max_tokens}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("pyengine: error: max_tokens must be from 1 to 2047, ")
