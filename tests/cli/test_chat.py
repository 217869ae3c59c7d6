import io
import signal
from collections.abc import Callable, Iterator

import pytest

from pyengine.cli import main
from pyengine.errors import InvalidRequestError
from pyengine.outputs import RequestUpdate
from tests.cli.fakes import FakeLLM

ANSWER = {"role": "assistant", "content": "Paris, of course"}


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def type_lines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def type_lines(*lines: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))

    return type_lines


def _asked(llm: FakeLLM) -> list[list[dict[str, str]]]:
    return [messages for _, messages, _ in llm.calls]


def test_answers_are_streamed_and_the_conversation_is_kept(
    llms: list[FakeLLM],
    type_lines: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    type_lines("Capital?", "", "Sure?")
    assert main(["chat", "m"]) == 0
    assert capsys.readouterr().out == "Paris, of course\n" * 2
    assert _asked(llms[0]) == [
        [_user("Capital?")],
        [_user("Capital?"), ANSWER, _user("Sure?")],
    ]


def test_reset_keeps_the_system_message_alone(
    llms: list[FakeLLM], type_lines: Callable[..., None]
) -> None:
    system = {"role": "system", "content": "Be brief."}
    type_lines("one", "/reset", "two", "/exit", "three")
    assert main(["chat", "m", "--system", "Be brief."]) == 0
    assert _asked(llms[0]) == [[system, _user("one")], [system, _user("two")]]


def test_an_unknown_command_is_not_sent_to_the_model(
    llms: list[FakeLLM],
    type_lines: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    type_lines("/quit")
    assert main(["chat", "m"]) == 0
    assert llms[0].calls == []
    assert "unknown command /quit: there are /reset and /exit" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_keeps_what_there_is(
    llms: list[FakeLLM],
    type_lines: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    updates = FakeLLM._updates

    def interrupted_after_two(self: FakeLLM) -> Iterator[RequestUpdate]:
        for number, update in enumerate(updates(self), start=1):
            if number == 2:
                signal.raise_signal(signal.SIGINT)
            yield update

    monkeypatch.setattr(FakeLLM, "_updates", interrupted_after_two)
    before = signal.getsignal(signal.SIGINT)
    type_lines("one", "two")
    assert main(["chat", "m"]) == 0
    assert capsys.readouterr().out == "Paris,\n" * 2
    assert llms[0].num_closed_streams == 2
    assert _asked(llms[0])[1][1] == {"role": "assistant", "content": "Paris,"}
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_during_an_answer_leaves(
    llms: list[FakeLLM], type_lines: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted_twice(self: FakeLLM) -> Iterator[RequestUpdate]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        yield from ()

    monkeypatch.setattr(FakeLLM, "_updates", interrupted_twice)
    type_lines("one")
    assert main(["chat", "m"]) == 130


def test_a_refused_question_is_forgotten_and_the_chat_goes_on(
    llms: list[FakeLLM],
    type_lines: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    updates = FakeLLM._updates

    def refuse_the_first(self: FakeLLM) -> Iterator[RequestUpdate]:
        if len(self.calls) == 1:
            raise InvalidRequestError("the prompt has 99 tokens, the model takes 64")
        return updates(self)

    monkeypatch.setattr(FakeLLM, "_updates", refuse_the_first)
    type_lines("long", "short")
    assert main(["chat", "m"]) == 0
    assert "the model takes 64 (/reset starts over)" in capsys.readouterr().err
    assert _asked(llms[0])[1] == [_user("short")]
