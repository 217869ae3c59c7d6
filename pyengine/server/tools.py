"""Tools: what a chat completion may call, and the calls in its answers."""

import dataclasses
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from pyengine.sampling_params import Grammar, SamplingParams
from pyengine.server.answers import ToolCallPiece
from pyengine.server.body import Body
from pyengine.server.context import ENGINE, OPTIONS
from pyengine.server.errors import ApiError
from pyengine.text.tool_formats import TOOL_FORMATS, ToolFormat, find_tool_format
from pyengine.text.tool_parser import ToolCallDelta, ToolParser

MAX_TOOLS = 128

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


def _check_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError("must be a JSON schema of an object: arguments have names")
    return schema


class ToolFunction(Body):
    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_check_parameters)] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


def _parse_tool_choice(value: Any, info: ValidationInfo) -> str | NamedTool:
    """Written out since a union would complain of each of its types."""
    if value in ("none", "auto", "required"):
        return str(value)
    try:
        return NamedTool.model_validate(value, context=info.context)
    except ValidationError:
        raise ValueError(
            'must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
        ) from None


ToolChoice = Annotated[
    str | NamedTool,
    PlainValidator(
        _parse_tool_choice,
        json_schema_input_type=Literal["none", "auto", "required"] | NamedTool,
    ),
]


class ToolsBody(Body):
    """The fields about tools."""

    tools: Annotated[list[Tool], Field(min_length=1, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def usable_tools(self) -> list[Tool]:
        return [] if self.tools is None or self.tool_choice == "none" else self.tools

    @property
    def must_call(self) -> list[Tool]:
        """The tools of which one has to be called; empty if none has to."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.usable_tools if tool.function.name == name]
        return self.usable_tools if self.tool_choice == "required" else []

    @property
    def has_one_call(self) -> bool:
        return self.parallel_tool_calls is False or isinstance(self.tool_choice, NamedTool)

    def tools_for_template(self) -> list[dict[str, Any]] | None:
        """As Hugging Face passes them: as they came."""
        tools = [tool.model_dump(exclude_none=True) for tool in self.usable_tools]
        return tools or None

    @model_validator(mode="after")
    def _check_tools(self) -> "ToolsBody":
        names = [tool.function.name for tool in self.tools or ()]
        for field in ("tool_choice", "parallel_tool_calls"):
            if not names and getattr(self, field) not in (None, "none"):
                raise ApiError(400, f"{field} needs tools", param=field)
        if len(set(names)) < len(names):
            raise ApiError(400, "tools must have different names", param="tools")
        if isinstance(self.tool_choice, NamedTool) and not self.must_call:
            name = self.tool_choice.function.name
            raise ApiError(400, f"tool_choice: there is no tool {name!r}", param="tool_choice")
        return self


class ToolUse:
    """How the model of a server calls the tools of a request.

    Raises:
        ApiError: 400, the model's way to call tools isn't known, or it wouldn't learn of them.
    """

    def __init__(self, app: web.Application, body: ToolsBody) -> None:
        tool_format = tool_format_of(app)
        if tool_format is None:
            raise ApiError(
                400,
                "tools: the model's chat template knows of none; on a server started with "
                "--tool-call-parser a tool_choice that is required or names a tool makes it call",
                param="tools",
            )
        check_tools_reach_model(app, body)
        self._body = body
        self._format = tool_format

    def constrain(self, params: SamplingParams) -> SamplingParams:
        """The parameters with a grammar, if a tool has to be called, or one is strict.

        Raises:
            ApiError: 400, there is another grammar, or the format can't hold to a strict tool.
        """
        text = self._grammar()
        if text is None:
            return params
        if params.grammar is not None:
            param = "tool_choice" if self._body.must_call else "tools"
            message = f"{params.grammar.param} excludes tools that are required or strict"
            raise ApiError(400, message, param=param)
        return dataclasses.replace(params, grammar=Grammar("tools", text, param="tools"))

    def _grammar(self) -> str | None:
        has_one_call = self._body.has_one_call
        if tools := self._body.must_call:
            functions = [tool.function.model_dump() for tool in tools]
            return self._format.grammar(functions, has_one_call=has_one_call)
        functions = [tool.function.model_dump() for tool in self._body.usable_tools]
        if not any(function["strict"] for function in functions):
            return None
        if self._format.bare is not None:
            index = [bool(function["strict"]) for function in functions].index(True)
            param = f"tools[{index}].function.strict"
            raise ApiError(
                400,
                f"{param}: true needs a tool_choice that is required or names a tool, as this "
                f"model's calls ({self._format.name}) can't be told from text",
                param=param,
            )
        for function in functions:
            if not function["strict"]:
                function["parameters"] = {"type": "object"}
        return self._format.grammar_with_text(functions, has_one_call=has_one_call)

    def new_calls(self) -> "ToolCalls":
        names = [tool.function.name for tool in self._body.usable_tools]
        max_calls = 1 if self._body.has_one_call else None
        return ToolCalls(ToolParser(self._format, names, max_calls), self._format)


class ToolCalls:
    """Finds the calls of one choice, and words them."""

    def __init__(self, parser: ToolParser, tool_format: ToolFormat) -> None:
        self._parser = parser
        self._format = tool_format

    @property
    def has_calls(self) -> bool:
        return self._parser.num_calls > 0

    def push(self, text: str, *, is_end: bool) -> tuple[str, list[ToolCallPiece]]:
        """-> what is text of a piece of the answer, and the pieces of calls in OpenAI's shape."""
        content, deltas = self._parser.push(text)
        if is_end:
            rest, more = self._parser.flush()
            content, deltas = content + rest, deltas + more
        return content, [self._word(delta) for delta in deltas]

    def _word(self, delta: ToolCallDelta) -> ToolCallPiece:
        if delta.name is None:
            return {"index": delta.index, "function": {"arguments": delta.arguments}}
        return {
            "index": delta.index,
            "id": self._format.new_call_id(),
            "type": "function",
            "function": {"name": delta.name, "arguments": delta.arguments},
        }


def tool_format_of(app: web.Application) -> ToolFormat | None:
    """How the model of a server writes calls; None if that isn't known."""
    name = app[OPTIONS].tool_call_parser
    if name != "auto":
        return TOOL_FORMATS[name]
    return find_tool_format(app[ENGINE].tokenizer.chat_template)


def check_tools_reach_model(app: web.Application, body: ToolsBody) -> None:
    """Tools come to the model by its prompt, or by the grammar of its answer.

    Raises:
        ApiError: 400, by neither.
    """
    template = app[ENGINE].chat_template
    if not body.usable_tools or template is None or template.shows_tools:
        return
    if not body.must_call and not any(tool.function.strict for tool in body.usable_tools):
        raise ApiError(
            400,
            "tools: the model's chat template doesn't show them to the model; give a tool_choice "
            "that is required or names a tool, which holds the answer to calls",
            param="tools",
        )
