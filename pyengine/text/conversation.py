"""Conversations as prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyengine.text.chat_template import ChatTemplate, ChatTemplateError
from pyengine.text.quoting import Quoter
from pyengine.text.tokenizer import Tokenizer
from pyengine.text.tool_formats import ToolFormat


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What a chat template spells out.

    Args:
        messages: each with a role and content, as templates expect them.
        add_generation_prompt: end with what begins an answer.
        continue_final_message: end with the last message's content, without what ends it.
        tools: as templates expect them; None if there are none.
        template_kwargs: further variables of the template.
    """

    messages: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_more_than_messages(self) -> bool:
        return self.tools is not None or bool(self.template_kwargs)

    @property
    def has_calls(self) -> bool:
        return any("tool_calls" in message for message in self.messages)

    def with_calls_as_text(self, tool_format: ToolFormat) -> "Conversation":
        """The same with the calls at the end of contents, where answers had them: for templates
        that don't show calls."""
        messages = []
        for message in self.messages:
            rest = dict(message)
            if calls := rest.pop("tool_calls", None):
                text = tool_format.spell([call["function"] for call in calls])
                rest["content"] = (rest["content"] or "") + text
            messages.append(rest)
        return replace(self, messages=messages)

    def encode(self, tokenizer: Tokenizer, template: ChatTemplate) -> tuple[str, list[int]]:
        """-> the text, and its token ids. Special tokens are those that the template writes: their
        names in messages are text.

        Raises:
            ChatTemplateError: the template refuses the conversation, or fails on it.
        """
        quoter = Quoter(tokenizer.special_names)
        render = partial(
            template.render,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            tools=None if self.tools is None else [quoter.quote(dict(t)) for t in self.tools],
            **self.template_kwargs,
        )
        messages = [quoter.quote(dict(message)) for message in self.messages]
        try:
            text = render(messages)
        except ChatTemplateError:
            # Null stands beside calls. A template may take it for text, and fail.
            if all(message.get("content", "") is not None for message in messages):
                raise
            text = render(
                [{**message, "content": message.get("content") or ""} for message in messages]
            )
        if quoter.has_quoted:
            return quoter.unquote(text), tokenizer.encode_pieces(quoter.split(text))
        return text, tokenizer.encode(text, add_special_tokens=False)
