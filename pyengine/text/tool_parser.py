"""Finds tool calls in an answer that comes in pieces."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from pyengine.text.tool_formats import ToolFormat

_ARGUMENT_KEYS = ("arguments", "parameters")
# A call up to its arguments, with the keys in the usual order.
_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*\{',
    re.DOTALL,
)


@dataclass
class ToolCallDelta:
    """What a piece of the answer added to a call."""

    index: int
    name: str | None  # with the first of a call
    arguments: str  # a part of the JSON


class _State(Enum):
    TEXT = auto()  # outside of calls
    OPEN = auto()  # after a marker
    CALL = auto()  # in the object of a call
    AFTER = auto()  # after one


class ToolParser:
    """Splits an answer into text and tool calls.

    It reads character by character, so that what comes out doesn't depend on how the answer was cut
    up. Held back is what may become a call: the beginning of a marker, and a call as far as its
    arguments. What turns out to be no call, or one of an unknown tool, is text.

    Args:
        tool_format: how the model writes calls.
        names: of the tools.
        max_calls: further calls are left out; None means none are.

    Attributes:
        num_calls: the calls that have begun, those left out too.
    """

    def __init__(
        self, tool_format: ToolFormat, names: Collection[str], max_calls: int | None = None
    ) -> None:
        self.num_calls = 0
        self._format = tool_format
        self._names = names
        self._max_calls = max_calls
        self._state = _State.TEXT
        self._is_beginning = True
        self._held = ""  # text if it is no call
        self._call = ""  # the object of a call
        self._depth = 0  # of braces and brackets in it
        self._is_in_string = False
        self._is_escaped = False
        self._is_streaming = False  # the arguments go out as they come
        self._ends_arguments = False
        self._text = ""
        self._deltas: list[ToolCallDelta] = []

    def push(self, piece: str) -> tuple[str, list[ToolCallDelta]]:
        """-> what is now known to be text, and what to be calls."""
        for character in piece:
            self._push(character)
        return self._take()

    def flush(self) -> tuple[str, list[ToolCallDelta]]:
        """The end of the answer: what was held back is text, but for spaces after a call."""
        if self._state is not _State.AFTER and not self._is_streaming:
            self._text += self._held + self._call
        self._held = self._call = ""
        return self._take()

    def _take(self) -> tuple[str, list[ToolCallDelta]]:
        taken = self._text, self._deltas
        self._text, self._deltas = "", []
        return taken

    def _push(self, character: str) -> None:
        match self._state:
            case _State.TEXT:
                self._push_text(character)
            case _State.OPEN:
                self._push_open(character)
            case _State.CALL:
                self._push_call(character)
            case _State.AFTER:
                self._push_after(character)

    def _push_text(self, character: str) -> None:
        self._held += character
        marker = self._format.marker
        if self._is_beginning:
            begun = self._held.lstrip()
            if marker.startswith(begun) and begun != marker:
                return
            if begun[0] == self._format.bare and begun != marker:
                self._is_beginning = False
                self._held = self._held.removesuffix(begun)
                self._state = _State.OPEN
                for held_character in begun:
                    self._push(held_character)
                return
        while not marker.startswith(self._held.lstrip() if self._is_beginning else self._held):
            self._is_beginning = False
            self._text += self._held[0]
            self._held = self._held[1:]
        if self._held.endswith(marker):
            self._state = _State.OPEN
            self._is_beginning = False

    def _push_open(self, character: str) -> None:
        if character == "{":
            self._state = _State.CALL
            self._push_call(character)
        elif character.isspace() or (character == self._format.opening and self._is_unopened()):
            self._held += character
        else:
            self._fail(character)

    def _is_unopened(self) -> bool:
        rest = self._held.strip().removeprefix(self._format.marker)
        return self._format.opening not in rest

    def _push_call(self, character: str) -> None:
        self._call += character
        was_in_arguments = self._is_streaming and not self._ends_arguments
        if self._is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._is_in_string = False
        elif character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
            if character == "{" and self._depth == 2 and not self._is_streaming:
                self._begin_streaming()
        elif character in "}]":
            self._depth -= 1
        if was_in_arguments:
            self._add_arguments(character)
            self._ends_arguments = self._depth == 1 and not self._is_in_string
        if self._depth == 0:
            self._end_call()

    def _begin_streaming(self) -> None:
        head = _HEAD.fullmatch(self._call)
        if head is None:
            return
        name = _loads(head["name"])
        if name in self._names:
            self._is_streaming = True
            self._begin_call(name, "{")

    def _end_call(self) -> None:
        if not self._is_streaming:
            call = _loads(self._call)
            name = call.get("name") if isinstance(call, dict) else None
            if not isinstance(name, str) or name not in self._names:
                self._fail("")
                return
            given = [call[key] for key in _ARGUMENT_KEYS if key in call]
            arguments = given[0] if given else {}
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            self._begin_call(name, arguments)
        self._held = self._call = ""
        self._is_streaming = self._ends_arguments = False
        self._state = _State.AFTER

    def _begin_call(self, name: str, arguments: str) -> None:
        self.num_calls += 1
        if self._max_calls is None or self.num_calls <= self._max_calls:
            self._deltas.append(ToolCallDelta(self.num_calls - 1, name, arguments))

    def _add_arguments(self, arguments: str) -> None:
        if self._max_calls is not None and self.num_calls > self._max_calls:
            return
        index = self.num_calls - 1
        if self._deltas and self._deltas[-1].index == index:
            self._deltas[-1].arguments += arguments
        else:
            self._deltas.append(ToolCallDelta(index, None, arguments))

    def _push_after(self, character: str) -> None:
        """Between calls: spaces, and what separates and ends them, tell nothing."""
        self._held += character
        held = self._held.strip()
        end, separator = self._format.end, self._format.separator.strip()
        if not held or (held != end and end.startswith(held)):
            return
        if held == end or (held == self._format.closing and held):
            self._held = ""
        elif held == self._format.marker or (separator and held == separator):
            self._state = _State.OPEN
        elif not self._format.marker.startswith(held):
            self._fail("")

    def _fail(self, character: str) -> None:
        """It was no call: text, and whatever the character makes of the text."""
        self._text += self._held + self._call
        self._held = self._call = ""
        self._depth = 0
        self._is_in_string = self._is_escaped = False
        self._state = _State.TEXT
        if character:
            self._push_text(character)


def _loads(text: str) -> Any:
    """JSON, or None if it isn't."""
    try:
        return json.loads(text)
    except ValueError:
        return None
