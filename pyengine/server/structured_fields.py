"""The fields of a body that hold its output to a grammar: OpenAI's, and vLLM's old and new ones."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from pyengine.sampling_params import Grammar, GrammarKind
from pyengine.server.body import Body
from pyengine.server.errors import ApiError


def _parse_schema(value: Any) -> dict[str, Any] | str:
    if isinstance(value, dict | str):
        return value
    raise ValueError("must be a JSON schema: an object, or a string that holds one")


Schema = dict[str, Any]
WrittenSchema = Annotated[
    Schema | str, PlainValidator(_parse_schema, json_schema_input_type=Schema | str)
]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)]

# Of vLLM's -> what to do instead.
_UNSUPPORTED = {
    "guided_decoding_backend": "there is one backend: leave it out",
    "guided_whitespace_pattern": "leave it out, or write a grammar",
    "structural_tag": "use tools, or write a grammar",
}

_ANY_OBJECT: Schema = {"type": "object"}


class JsonSchemaFormat(Body):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: Schema = Field(alias="schema")
    description: str | None = None  # for the reader: the model sees none of this
    strict: bool | None = None  # the schema holds either way


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def grammars(self) -> list[Grammar]:
        schema = _ANY_OBJECT if self.type == "json_object" else None
        if self.json_schema is not None:
            schema = self.json_schema.schema_
        return _written(("json_schema", schema, "response_format"))

    @model_validator(mode="after")
    def _check_schema(self) -> "ResponseFormat":
        if (self.json_schema is not None) != (self.type == "json_schema"):
            param = "response_format.json_schema"
            wanted = "is required with" if self.json_schema is None else "needs"
            raise ApiError(400, f'{param} {wanted} type "json_schema"', param=param)
        return self


class StructuredOutputs(Body):
    json_: WrittenSchema | None = Field(None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: Choices | None = None
    grammar_: str | None = Field(None, alias="grammar")

    def grammars(self) -> list[Grammar]:
        any_object = _ANY_OBJECT if self.json_object else None
        return _written(
            ("json_schema", self.json_, "structured_outputs.json"),
            (
                "json_schema",
                any_object,
                "structured_outputs.json_object",
            ),
            ("regex", self.regex, "structured_outputs.regex"),
            ("choice", self.choice, "structured_outputs.choice"),
            ("grammar", self.grammar_, "structured_outputs.grammar"),
        )


class StructuredFields(Body):
    """At most one of them says what the output must match."""

    unsupported = _UNSUPPORTED

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: WrittenSchema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    def grammar(self) -> Grammar | None:
        """
        Raises:
            ApiError: 400, there are several.
            InvalidRequestError: it is too long.
        """
        grammars = _written(
            ("json_schema", self.guided_json, "guided_json"),
            ("regex", self.guided_regex, "guided_regex"),
            ("choice", self.guided_choice, "guided_choice"),
            ("grammar", self.guided_grammar, "guided_grammar"),
        )
        if self.response_format is not None:
            grammars += self.response_format.grammars()
        if self.structured_outputs is not None:
            grammars += self.structured_outputs.grammars()
        if len(grammars) > 1:
            first, second = grammars[:2]
            raise ApiError(
                400,
                f"{first.param} and {second.param} both say what the output must match: give one",
                param=second.param,
            )
        return grammars[0] if grammars else None


def _written(*given: tuple[GrammarKind, Any, str]) -> list[Grammar]:
    """(kind, text or what is written as JSON, field) -> those that are there."""
    return [
        Grammar(kind, value if isinstance(value, str) else json.dumps(value), param)
        for kind, value, param in given
        if value is not None
    ]
