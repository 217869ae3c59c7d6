import pytest

from pyengine import verify
from pyengine.cli import main
from pyengine.engine import loading
from tests.tiny import tiny_model


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load", lambda config, show_progress: tiny_model())


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
