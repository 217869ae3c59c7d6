"""The messages of a conversation, as clients send them."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from pyengine.server.body import Body


def _parse_content(value: Any) -> str:
    """A string, or a list of text parts -> the text; parts are joined by line ends."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"part {index} must be an object with a type")
        if part["type"] != "text":
            raise ValueError(
                f"part {index} is of type {part['type']!r}; only 'text' is supported: no images, "
                "audio or files"
            )
        if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError(f"part {index} must hold a type and a text, and nothing else")
        texts.append(part["text"])
    return "\n".join(texts)


Content = Annotated[str, PlainValidator(_parse_content)]


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """As chat templates expect it: they know the developer by the older name."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content}
        if self.name is not None:
            message["name"] = self.name
        return message


# One complaint about a list is enough: a list may be long.
Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]
