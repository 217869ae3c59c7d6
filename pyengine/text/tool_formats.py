"""The ways in which models write tool calls."""

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ToolFormatName = Literal["hermes", "llama3", "mistral"]

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """
    Args:
        name: of the parser, for options.
        marker: what begins calls.
        bare: the character that begins calls without a marker, at the beginning of an answer; the
            marker may be a special token, of which the text shows nothing. None: only the marker.
        end: what ends a call; may be empty.
        opening, separator, closing: what stands before, between and after calls.
        arguments_key: the name of the arguments, next to "name", in a call's JSON.
        has_parallel_calls: whether an answer of the models may hold several.
        short_ids: calls have ids of nine letters and digits, as the models' templates ask for.
    """

    name: ToolFormatName
    marker: str
    bare: str | None
    end: str
    opening: str
    separator: str
    closing: str
    arguments_key: str
    has_parallel_calls: bool = True
    short_ids: bool = False

    def new_call_id(self) -> str:
        if self.short_ids:
            alphabet = string.ascii_letters + string.digits
            return "".join(secrets.choice(alphabet) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    def spell(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Calls as a model writes them, and as `grammar` has it.

        Args:
            calls: each with "name" and "arguments", an object.
        """
        begin, end = (f"{self.marker}\n", f"\n{self.end}") if self.end else ("", "")
        spelled = []
        for call in calls:
            content = {"name": call["name"], self.arguments_key: call["arguments"]}
            spelled.append(f"{begin}{json.dumps(content, ensure_ascii=False)}{end}")
        return f"{self.opening}{self.separator.join(spelled)}{self.closing}"

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, has_one_call: bool) -> str:
        """Matches answers that call these tools, at least once, in Lark's notation.

        Args:
            tools: each with "name" and perhaps "parameters", a JSON schema.
            has_one_call: just once.
        """
        is_single = has_one_call or not self.has_parallel_calls
        call = [*_literal(self.marker if self.end else ""), "call"]
        more = [] if is_single else [f"({' '.join([*_literal(self.separator), *call])})*"]
        start = " ".join([*_literal(self.opening), *call, *more, *_literal(self.closing)])
        return "\n".join([f"start: {start}", *self._call_rules(tools)])

    def grammar_with_text(self, tools: Sequence[Mapping[str, Any]], *, has_one_call: bool) -> str:
        """The same for answers that need call none, and may hold text around calls. Only for
        formats in which a marker begins every call: there is no other way to tell it from text.
        """
        assert self.bare is None, f"{self.name}: calls may begin without a marker"
        marker = json.dumps(self.marker)
        anything = "/(?s:.*)/"
        return "\n".join(
            [
                f"start: TEXT | {'before call' if has_one_call else '(before call)+'} TEXT",
                f"before[suffix={marker}]: {anything}",
                f"TEXT: {anything} & ~/(?s:.*){re.escape(self.marker)}(?s:.*)/",
                *self._call_rules(tools),
            ]
        )

    def _call_rules(self, tools: Sequence[Mapping[str, Any]]) -> list[str]:
        """Of a call after its marker."""
        rules = []
        calls = []
        for index, tool in enumerate(tools):
            head = f'{{"name": {json.dumps(tool["name"])}, "{self.arguments_key}": '
            calls.append(f'{json.dumps(head)} arguments_{index} "}}"')
            schema = {**(tool.get("parameters") or _NO_PARAMETERS)}
            schema["x-guidance"] = {
                "whitespace_flexible": False,
                "item_separator": ", ",
                "key_separator": ": ",
                "lenient": False,
            }
            rules.append(f"arguments_{index}: %json {json.dumps(schema)}")
        begin, end = ("\n", "\n" + self.end) if self.end else ("", "")
        call = " ".join([*_literal(begin), f"({' | '.join(calls)})", *_literal(end)])
        return [f"call: {call}", *rules]


_FORMATS = (
    ToolFormat(
        name="hermes",
        marker="<tool_call>",
        bare=None,
        end="</tool_call>",
        opening="",
        separator="\n",
        closing="",
        arguments_key="arguments",
    ),
    ToolFormat(
        name="mistral",
        marker="[TOOL_CALLS]",
        bare="[",
        end="",
        opening="[",
        separator=", ",
        closing="]",
        arguments_key="arguments",
        short_ids=True,
    ),
    ToolFormat(
        name="llama3",
        marker="<|python_tag|>",
        bare="{",
        end="",
        opening="",
        separator="; ",
        closing="",
        arguments_key="parameters",
        has_parallel_calls=False,
    ),
)
TOOL_FORMATS: Mapping[str, ToolFormat] = {format.name: format for format in _FORMATS}


def find_tool_format(chat_template: str | None) -> ToolFormat | None:
    """The format that a chat template spells calls in; None if it knows of none."""
    for tool_format in _FORMATS:
        if chat_template is not None and tool_format.marker in chat_template:
            return tool_format
    # Not all templates of Llama 3 spell the tag.
    if chat_template and "<|start_header_id|>" in chat_template and "tools" in chat_template:
        return TOOL_FORMATS["llama3"]
    return None


def _literal(text: str) -> list[str]:
    return [json.dumps(text)] if text else []
