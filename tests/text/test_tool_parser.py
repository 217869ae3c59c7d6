"""Tool calls are found in answers, however these are cut up."""

import json
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from pyengine.text.tool_formats import TOOL_FORMATS, find_tool_format
from pyengine.text.tool_parser import ToolParser

NAMES = {"weather", "time"}
ARGUMENTS = '{"city": "Par\\"{}is", "days": [1, {"a": "]"}]}'
HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
CALL: tuple[str, str] = ("weather", ARGUMENTS)

CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Hello <b> there", "Hello <b> there", []),
    ("hermes", HERMES, "", [CALL]),
    ("hermes", f"\n\n{HERMES}\n", "", [CALL]),
    ("hermes", f"Let me see.\n{HERMES}", "Let me see.\n", [CALL]),
    ("hermes", f"{HERMES}\n{HERMES}", "", [CALL, CALL]),
    ("hermes", f"{HERMES} done", " done", [CALL]),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "name": "time"}</tool_call>',
        "",
        [("time", '{"a": 1}')],
    ),
    ("hermes", '<tool_call>{"name": "time"}</tool_call>', "", [("time", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "time", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("time", '{"a": 1}')],
    ),
    ("hermes", '<tool_call>{"name": "time", "arguments": {"a": 1', "", [("time", '{"a": 1')]),
    *(
        ("hermes", text, text, [])
        for text in (
            '<tool_call>{"name": "rob", "arguments": {"a": 1}}',
            "<tool_call>{broken}",
            "<tool_call>no",
            '<tool_call>{"name": ',
            "a <tool_",
            "<<tool",
            "<tool_cal>",
            '{"name": "time", "arguments": {}}',
        )
    ),
    ("llama3", f'{{"name": "weather", "parameters": {ARGUMENTS}}}', "", [CALL]),
    ("llama3", f'<|python_tag|>{{"name": "weather", "parameters": {ARGUMENTS}}}', "", [CALL]),
    (
        "llama3",
        '{"name": "time", "parameters": {}}; {"name": "time", "parameters": {"a": 1}}',
        "",
        [("time", "{}"), ("time", '{"a": 1}')],
    ),
    ("llama3", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
    ("llama3", 'Say {"name": "time"}', 'Say {"name": "time"}', []),
    ("mistral", f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}]', "", [CALL]),
    ("mistral", f'[{{"name": "weather", "arguments": {ARGUMENTS}}}]', "", [CALL]),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "time", "arguments": {}}, {"name": "time", "arguments": {"a": 1}}]',
        "",
        [("time", "{}"), ("time", '{"a": 1}')],
    ),
    ("mistral", "[1, 2]", "[1, 2]", []),
    ("mistral", "[[x]]", "[[x]]", []),
]


def parse(
    name: str, pieces: list[str], max_calls: int | None = None
) -> tuple[str, list[tuple[str, str]]]:
    """-> the text, and (name, arguments) of the calls."""
    parser = ToolParser(TOOL_FORMATS[name], NAMES, max_calls)
    text = ""
    calls: list[list[str]] = []
    for more, deltas in [*map(parser.push, pieces), parser.flush()]:
        text += more
        for delta in deltas:
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    return text, [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize(("name", "answer", "text", "calls"), CASES)
def test_calls_are_found_wherever_the_answer_is_cut(
    name: str, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    assert parse(name, [answer]) == (text, calls)
    assert parse(name, list(answer)) == (text, calls)
    for cuts in combinations(range(len(answer)), 2):
        first, second = cuts
        pieces = [answer[:first], answer[first:second], answer[second:]]
        assert parse(name, pieces) == (text, calls)


@given(
    name=st.sampled_from(sorted(TOOL_FORMATS)),
    fragments=st.lists(
        st.sampled_from(
            [
                *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<", "tool"),
                *(
                    '{"name": "time", "arguments": {"a": [1]}}',
                    '{"name": "time"',
                    ', "arguments": ',
                ),
                *("{", "}", "[", "]", ";", ",", '"', "\\", "\n", " ", "x", "é"),
            ]
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
def test_any_answer_is_read_the_same_however_it_is_cut(
    name: str, fragments: list[str], cuts: list[int]
) -> None:
    answer = "".join(fragments)
    ends = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    pieces = [answer[start:end] for start, end in pairwise(ends)]
    whole = parse(name, [answer])
    assert parse(name, pieces) == whole
    if not whole[1]:
        assert whole[0] == answer, "without a call, all of it is text"


def test_text_is_held_back_only_as_far_as_a_marker_may_have_begun() -> None:
    parser = ToolParser(TOOL_FORMATS["hermes"], NAMES)
    assert parser.push("Well <tool") == ("Well ", [])
    assert parser.push("box> <") == ("<toolbox> ", [])
    assert parser.flush() == ("<", [])


def test_arguments_go_out_as_they_come() -> None:
    parser = ToolParser(TOOL_FORMATS["hermes"], NAMES)
    parser.push('<tool_call>{"name": "time", "arguments": ')
    sent = [
        [(delta.name, delta.arguments) for delta in parser.push(piece)[1]]
        for piece in ("{", '"a": ', '"}', '"}', "}", "</tool_call>")
    ]
    assert sent == [[("time", "{")], [(None, '"a": ')], [(None, '"}')], [(None, '"}')], [], []]


def test_calls_beyond_the_most_are_left_out() -> None:
    assert parse("hermes", [f"{HERMES}\n{HERMES}"], max_calls=1) == ("", [CALL])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("<tool_call>{{ x }}</tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|start_header_id|>{{ tools }}", "llama3"),
        ("<|start_header_id|>", None),
    ],
)
def test_the_template_tells_the_format(template: str | None, name: str | None) -> None:
    found = find_tool_format(template)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("has_one_call", [True, False])
def test_what_the_grammar_allows_is_what_the_parser_finds(name: str, has_one_call: bool) -> None:
    tools: list[dict[str, Any]] = [
        {"name": "time", "parameters": None},
        {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"$ref": "#/$defs/city"}},
                "required": ["city"],
                "additionalProperties": False,
                "$defs": {"city": {"enum": ["Rome", "Bonn"]}},
            },
        },
    ]
    tool_format = TOOL_FORMATS[name]
    grammar = LLMatcher.grammar_from_lark(tool_format.grammar(tools, has_one_call=has_one_call))
    key = tool_format.arguments_key
    calls = [
        f'{{"name": "time", "{key}": {{}}}}',
        f'{{"name": "weather", "{key}": {{"city": "Bonn"}}}}',
    ]
    if name == "hermes":
        calls = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    many = tool_format.opening + tool_format.separator.join(calls) + tool_format.closing
    one = tool_format.opening + calls[1] + tool_format.closing
    for answer, expected in ((many, ["time", "weather"]), (one, ["weather"])):
        matcher = LLMatcher(LLTokenizer("byte"), grammar)
        num_bytes = matcher.try_consume_tokens(list(answer.encode()))
        is_allowed = num_bytes == len(answer.encode()) and matcher.is_accepting()
        can_have_two = tool_format.has_parallel_calls and not has_one_call
        assert is_allowed == (len(expected) == 1 or can_have_two)
        assert [call for call, _ in parse(name, [answer])[1]] == expected
        assert all(json.loads(arguments) is not None for _, arguments in parse(name, [answer])[1])


TIME_CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("has_one_call", [True, False])
@pytest.mark.parametrize(
    ("answer", "num_calls"),
    [
        ("", 0),
        ("Hello <tool_cal", 0),
        (TIME_CALL, 1),
        (f"See:\n{TIME_CALL} So.", 1),
        (f"{TIME_CALL}\n{TIME_CALL}", 2),
        ("<tool_call>no", None),
        ("See <tool_call>", None),
        (TIME_CALL.replace("{}", '{"a": 1}'), None),
        (TIME_CALL.replace("time", "x"), None),
    ],
)
def test_a_strict_tool_is_called_by_its_schema_or_not_at_all(
    answer: str, num_calls: int | None, has_one_call: bool
) -> None:
    text = TOOL_FORMATS["hermes"].grammar_with_text([{"name": "time"}], has_one_call=has_one_call)
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(text))
    num_bytes = matcher.try_consume_tokens(list(answer.encode()))
    is_allowed = num_bytes == len(answer.encode()) and matcher.is_accepting()
    assert is_allowed == (num_calls in ((0, 1) if has_one_call else (0, 1, 2)))
    if is_allowed:
        assert len(parse("hermes", [answer])[1]) == num_calls
