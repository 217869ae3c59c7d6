"""From what clients send to token ids and back, without holding up the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aiohttp import web

from pyengine.errors import InvalidRequestError
from pyengine.sampling_params import SamplingParams
from pyengine.server.context import ENGINE, TEXT_EXECUTOR
from pyengine.server.tools import tool_format_of
from pyengine.text.chat_template import ChatTemplateError
from pyengine.text.conversation import Conversation
from pyengine.text.tokenizer import Tokenizer

T = TypeVar("T")

# Encoding runs at a few characters a microsecond: up to this size the loop waits for a millisecond
# or two, and a hop to a thread would cost a part of that.
MAX_CHARS_ON_LOOP = 4096
MAX_TOKENS_ON_LOOP = 2048
# What a prompt or a message costs besides its characters.
NUM_CHARS_PER_TEXT = 64


@dataclass(frozen=True)
class Prompt:
    token_ids: list[int]
    text: str | None  # None if it came as token ids


async def encode_prompts(
    app: web.Application, prompts: list[str] | list[list[int]], n: int
) -> list[Prompt]:
    """Texts are encoded, token ids taken as they are: the engine checks them.

    Args:
        n: how many sequences each prompt gets.

    Raises:
        InvalidRequestError: there are more prompts than the engine would ever take at once.
    """
    config, max_num_seqs = app[ENGINE].config, app[ENGINE].limits.max_num_seqs
    # The last of them may wait as long as there is room for one.
    if (len(prompts) - 1) * n >= max_num_seqs + config.max_num_waiting:
        sequences = "prompts" if n == 1 else f"prompts for n = {n} sequences each"
        raise InvalidRequestError(
            f"prompt holds {len(prompts)} {sequences}, but only {max_num_seqs} run at once "
            f"(max_num_seqs) and {config.max_num_waiting} may wait (max_num_waiting)",
            "prompt",
        )
    cost = _cost([prompt for prompt in prompts if isinstance(prompt, str)])
    encode = partial(_encode_prompts, app[ENGINE].tokenizer, prompts)
    return await run_text_work(app, cost > MAX_CHARS_ON_LOOP, encode)


async def encode_text(
    app: web.Application, text: str, *, add_special_tokens: bool = True
) -> list[int]:
    tokenizer = app[ENGINE].tokenizer
    encode = partial(tokenizer.encode, text, add_special_tokens=add_special_tokens)
    return await run_text_work(app, len(text) > MAX_CHARS_ON_LOOP, encode)


async def decode_tokens(app: web.Application, token_ids: list[int]) -> str:
    """Special tokens included.

    Raises:
        InvalidRequestError: an id isn't in the vocabulary.
    """
    tokenizer = app[ENGINE].tokenizer
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < tokenizer.vocab_size:
        raise InvalidRequestError(
            f"tokens must be ids of the vocabulary, 0 to {tokenizer.vocab_size - 1}, "
            f"got {min(token_ids)} to {max(token_ids)}",
            "tokens",
        )
    decode = partial(tokenizer.decode, token_ids, skip_special_tokens=False)
    return await run_text_work(app, len(token_ids) > MAX_TOKENS_ON_LOOP, decode)


async def echo_prompts(
    app: web.Application, prompts: Sequence[Prompt], *, skip_special_tokens: bool
) -> list[str]:
    """The prompts as texts: as they came, or decoded."""
    tokenizer = app[ENGINE].tokenizer

    def decode() -> list[str]:
        return [
            tokenizer.decode(prompt.token_ids, skip_special_tokens=skip_special_tokens)
            if prompt.text is None
            else prompt.text
            for prompt in prompts
        ]

    num_tokens = sum(len(prompt.token_ids) for prompt in prompts if prompt.text is None)
    return await run_text_work(app, num_tokens > MAX_TOKENS_ON_LOOP, decode)


def truncate_prompts(
    app: web.Application, prompts: list[Prompt], num_tokens: int | None, params: SamplingParams
) -> list[Prompt]:
    """The prompts, the long ones without their beginning.

    Args:
        num_tokens: the most to keep; None means all, -1 as many as leave room for
            `params.max_tokens`, or for one token if that is None.
    """
    if num_tokens is None:
        return prompts
    if num_tokens == -1:
        # The last token of an answer takes no room.
        num_tokens = max(1, app[ENGINE].max_model_len - max(params.max_tokens or 1, 1) + 1)
    return [
        prompt
        if len(prompt.token_ids) <= num_tokens
        else Prompt(prompt.token_ids[-num_tokens:], text=None)
        for prompt in prompts
    ]


async def encode_conversation(app: web.Application, conversation: Conversation) -> Prompt:
    """A conversation through the model's chat template.

    Raises:
        InvalidRequestError: the model has no template, or the template refuses the conversation, or
            it doesn't show the calls in it, and how the model writes them isn't known.
    """
    template = app[ENGINE].chat_template
    if template is None:
        raise InvalidRequestError("the model has no chat template: use /v1/completions", "messages")
    if conversation.has_calls and not template.shows_calls:
        tool_format = tool_format_of(app)
        if tool_format is None:
            raise InvalidRequestError(
                "messages: the model's chat template doesn't show tool_calls; a server started "
                "with --tool-call-parser puts them into the content",
                "messages",
            )
        conversation = conversation.with_calls_as_text(tool_format)
    cost = _cost([message["content"] or "" for message in conversation.messages])
    encode = partial(conversation.encode, app[ENGINE].tokenizer, template)
    try:
        # Tools and variables of the template may be large, and aren't worth measuring.
        is_long = cost > MAX_CHARS_ON_LOOP or conversation.has_more_than_messages
        text, token_ids = await run_text_work(app, is_long, encode)
        return Prompt(token_ids, text)
    except ChatTemplateError as error:
        raise InvalidRequestError(f"messages: {error}", "messages") from error


def _cost(texts: Sequence[str]) -> int:
    """Of encoding, in characters."""
    return sum(map(len, texts)) + NUM_CHARS_PER_TEXT * len(texts)


def _encode_prompts(tokenizer: Tokenizer, prompts: list[str] | list[list[int]]) -> list[Prompt]:
    return [
        Prompt(tokenizer.encode(prompt), prompt)
        if isinstance(prompt, str)
        else Prompt(prompt, text=None)
        for prompt in prompts
    ]


async def run_text_work(app: web.Application, is_long: bool, work: Callable[[], T]) -> T:
    """Does work on the loop, or in a thread if it is long."""
    if not is_long:
        return work()
    return await asyncio.get_running_loop().run_in_executor(app[TEXT_EXECUTOR], work)
