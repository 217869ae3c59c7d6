"""Chat templates: Jinja programs that come with a model and spell out a conversation for it.

The environment is the one that the templates are written for, that of transformers'
`apply_chat_template`. Templates are foreign code, so they run in Jinja's sandbox.
"""

import datetime
import json
import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Longer than any model's context; a template may loop.
MAX_RENDERED_CHARS = 2**26


# Of a tool, to see whether a template shows it. Calls have an id as Mistral's templates ask for it.
_EXAMPLE_NAME = "example_tool_7b1f"
_EXAMPLE_TOOL = {
    "type": "function",
    "function": {
        "name": _EXAMPLE_NAME,
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
_EXAMPLE_CALL = {
    "id": "example00",
    "type": "function",
    "function": {"name": _EXAMPLE_NAME, "arguments": {}},
}
_EXAMPLE_QUESTION = {"role": "user", "content": "a"}


class ChatTemplateError(ValueError):
    """The template is broken, or refuses the conversation (the order of roles, say)."""


class ChatTemplate:
    """A compiled template.

    Args:
        source: the template, in Jinja.
        bos_token: the name of the token that begins a text, for templates that spell it out.
        eos_token: the same of the token that ends one.

    Raises:
        ChatTemplateError: it isn't a Jinja template.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self._names = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is broken in line {error.lineno}: {error.message}"
            ) from error

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        /,  # the template's variables may have any name
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The conversation as text for the model.

        Args:
            messages: the conversation, each with a role and content.
            add_generation_prompt: end with what begins an answer.
            continue_final_message: end with the last message's content, without what ends it, for
                the model to go on with.
            kwargs: further variables of the template, such as `tools`.

        Raises:
            ChatTemplateError: the template refuses the conversation, fails on it, or writes more
                than MAX_RENDERED_CHARS.
        """
        variables = {"tools": None, "documents": None, **self._names, **kwargs}
        variables["add_generation_prompt"] = add_generation_prompt
        if not continue_final_message:
            return self._render({"messages": messages, **variables})
        # Marks where the content ends. Its space tells whether the template strips contents.
        mark = f"{secrets.randbelow(10**24):024} "
        last = messages[-1]
        if not isinstance(last.get("content"), str):
            raise ChatTemplateError("there is no content to continue in the last message")
        marked = [*messages[:-1], {**last, "content": last["content"] + mark}]
        before, found, after = self._render({"messages": marked, **variables}).rpartition(mark[:-1])
        if not found:
            raise ChatTemplateError("the chat template leaves the last message out")
        return before if after.startswith(" ") else before.rstrip()

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the tools get into the text. One that fails on an example is taken to show them:
        what it complains of is for the conversations in question to meet."""
        return self._shows_example([_EXAMPLE_QUESTION], tools=[_EXAMPLE_TOOL])

    @cached_property
    def shows_calls(self) -> bool:
        """The same of the calls in an assistant's messages."""
        calls = {"role": "assistant", "content": "", "tool_calls": [_EXAMPLE_CALL]}
        return self._shows_example([_EXAMPLE_QUESTION, calls], add_generation_prompt=False)

    def _shows_example(self, messages: list[dict[str, Any]], **kwargs: Any) -> bool:
        try:
            return _EXAMPLE_NAME in self.render(messages, **kwargs)
        except ChatTemplateError:
            return True

    def _render(self, variables: dict[str, Any]) -> str:
        pieces = []
        num_chars = 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > MAX_RENDERED_CHARS:
                    raise ChatTemplateError(f"it wrote more than {MAX_RENDERED_CHARS} characters")
        except Exception as error:  # foreign code: it may fail in any way
            raise ChatTemplateError(f"the chat template failed: {error}") from error
        return "".join(pieces)


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %}: marks the model's own words for training; here
    they are text like any other."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes what is special in HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
