"""Conversations, as clients send them."""

import json
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from pyengine.server.body import Body
from pyengine.server.errors import ApiError
from pyengine.server.text_parts import parse_text
from pyengine.server.tools import ToolsBody
from pyengine.text.conversation import Conversation

# Variables of templates that have fields of their own.
_RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message"}
)


Content = Annotated[
    str,
    PlainValidator(
        partial(parse_text, kinds={"text": ()}), json_schema_input_type=str | list[dict[str, str]]
    ),
]


def _parse_arguments(value: Any) -> dict[str, Any]:
    """A JSON object, spelled as a string -> the object; empty strings count as one."""
    try:
        arguments = json.loads(value or "{}") if isinstance(value, str) else None
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError("must be a JSON object, spelled as a string")
    return arguments


class CalledFunction(Body):
    name: str
    arguments: Annotated[
        dict[str, Any], PlainValidator(_parse_arguments, json_schema_input_type=str)
    ]


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    # OpenAI's answers have it empty, and are sent back.
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: they know the developer by the older name, and get the
        arguments of calls as objects."""
        role = "system" if self.role == "developer" else self.role
        content = self.content if self.tool_calls else self.content or ""
        message: dict[str, Any] = {"role": role, "content": content}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    @model_validator(mode="after")
    def _check_role(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are the assistant's, got some of role {self.role!r}")
        if self.content is None and self.tool_calls is None:
            raise PydanticCustomError("missing_field", "missing field", {"name": "content"})
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("missing_field", "missing field", {"name": "tool_call_id"})
        return self


# One complaint about a list is enough: a list may be long.
Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class ConversationBody(ToolsBody):
    """What goes with messages into a chat template."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    def conversation(self, messages: list[Message]) -> Conversation:
        return Conversation(
            messages=[message.for_template() for message in messages],
            add_generation_prompt=(
                not self.continue_final_message
                if self.add_generation_prompt is None
                else self.add_generation_prompt
            ),
            continue_final_message=self.continue_final_message,
            tools=self.tools_for_template(),
            template_kwargs=self.chat_template_kwargs or {},
        )

    @model_validator(mode="after")
    def _check_template_fields(self) -> "ConversationBody":
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiError(
                400,
                "continue_final_message excludes add_generation_prompt: give one of them",
                param="continue_final_message",
            )
        if reserved := _RESERVED_VARIABLES.intersection(self.chat_template_kwargs or ()):
            raise ApiError(
                400,
                f"chat_template_kwargs must not hold {min(reserved)}, which is a field",
                param="chat_template_kwargs",
            )
        return self
