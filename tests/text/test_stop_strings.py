"""Stop strings: the same text for any cut of it, and no character held back in vain."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.text.detokenizer import StopStringMatcher

# Few letters, so that near misses and overlaps are common.
letters = st.text("ab", max_size=30)
stop_strings = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@st.composite
def cut_up_text(draw: st.DrawFn) -> list[str]:
    text = draw(letters)
    cuts = draw(st.lists(st.integers(0, len(text))))
    return [text[start:end] for start, end in pairwise(sorted([0, len(text), *cuts]))]


def first_stop(text: str, stop: list[str]) -> tuple[int, str] | None:
    """The slow twin: where the text is cut, and the stop string that does it."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stop if s in text]
    if not found:
        return None
    end, _, matched = min(found)
    return end - len(matched), matched


@given(cut_up_text(), stop_strings, st.booleans())
def test_matches_as_find_does_on_the_whole_text(
    pieces: list[str], stop: list[str], include_stop: bool
) -> None:
    matcher = StopStringMatcher(stop, include_stop=include_stop)
    emitted = "".join([*map(matcher.push, pieces), matcher.flush()])
    text = "".join(pieces)
    expected = first_stop(text, stop)
    if expected is None:
        assert (emitted, matcher.matched) == (text, None)
    else:
        start, matched = expected
        end = start + len(matched) if include_stop else start
        assert (emitted, matcher.matched) == (text[:end], matched)


@given(cut_up_text(), stop_strings)
def test_holds_back_exactly_what_could_begin_a_stop_string(
    pieces: list[str], stop: list[str]
) -> None:
    matcher = StopStringMatcher(stop, include_stop=False)
    text = emitted = ""
    for piece in pieces:
        text += piece
        emitted += matcher.push(piece)
        if matcher.matched is not None:
            return
        held = next(
            text[start:]
            for start in range(len(text) + 1)
            if start == len(text) or any(s.startswith(text[start:]) for s in stop)
        )
        assert emitted + held == text


def test_scenario_f1_a_stop_string_over_three_tokens_cuts_the_text() -> None:
    matcher = StopStringMatcher(["ABC"], include_stop=False)
    assert [matcher.push(piece) for piece in ("xA", "B", "C")] == ["x", "", ""]
    assert matcher.matched == "ABC"
    assert matcher.flush() == ""


def test_scenario_f1_a_near_miss_is_streamed_whole() -> None:
    matcher = StopStringMatcher(["ABC"], include_stop=False)
    assert [matcher.push(piece) for piece in ("xA", "By")] == ["x", "ABy"]
    assert matcher.matched is None


def test_text_after_the_stop_string_is_dropped() -> None:
    matcher = StopStringMatcher(["\n\n"], include_stop=True)
    assert matcher.push("one\n\ntwo") == "one\n\n"
    assert matcher.push("three") + matcher.flush() == ""


def test_what_was_held_back_comes_at_the_end() -> None:
    matcher = StopStringMatcher(["</answer>"], include_stop=False)
    assert matcher.push("42</ans") == "42"
    assert matcher.flush() == "</ans"


@pytest.mark.parametrize("cut", range(6))
def test_of_two_stop_strings_the_one_complete_first_wins_for_any_cut(cut: int) -> None:
    matcher = StopStringMatcher(["ABCD", "BC"], include_stop=False)
    assert matcher.push("xABCD"[:cut]) + matcher.push("xABCD"[cut:]) == "xA"
    assert matcher.matched == "BC"


def test_a_long_stop_string_costs_linear_time() -> None:
    """Comparing each end of the text with each beginning of it would take 10 ** 9 steps."""
    matcher = StopStringMatcher(["a" * 50_000 + "b"], include_stop=False)
    assert "".join(matcher.push("a" * 100) for _ in range(1000)) == "a" * 50_000
