"""Chat templates: Jinja programs that come with a model and spell out a conversation for it.

The environment is the one that the templates are written for, that of transformers'
`apply_chat_template`. Templates are foreign code, so they run in Jinja's sandbox.
"""

import datetime
import json
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


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
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The conversation as text for the model.

        Args:
            messages: the conversation, each with a role and content.
            add_generation_prompt: end with what begins an answer.
            kwargs: further variables of the template, such as `tools`.

        Raises:
            ChatTemplateError: the template refuses the conversation, or fails on it.
        """
        variables = {"tools": None, "documents": None, **self._names, **kwargs}
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **variables
            )
        except Exception as error:  # foreign code: it may fail in any way
            raise ChatTemplateError(f"the chat template failed: {error}") from error


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
