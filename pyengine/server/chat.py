"""POST /v1/chat/completions."""

from functools import partial
from typing import Literal

from aiohttp import web

from pyengine.errors import InvalidRequestError
from pyengine.outputs import CompletionOutput, FinishReason, SequenceDelta, TokenLogprobs
from pyengine.server.answers import (
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChunkExtra,
    Delta,
    Head,
    PromptReport,
    ToolCallPiece,
)
from pyengine.server.body import read_body
from pyengine.server.context import ENGINE
from pyengine.server.errors import renamed
from pyengine.server.generation import Generation, PromptOutput
from pyengine.server.logprobs import chat_logprobs, prompt_logprobs
from pyengine.server.prompts import encode_conversation, run_text_work, truncate_prompts
from pyengine.server.protocol import ChatBody
from pyengine.server.respond import (
    Wording,
    check_accepting,
    check_model,
    respond,
    sampling_defaults,
)
from pyengine.server.tools import ToolCalls, ToolUse
from pyengine.text.tokenizer import Tokenizer


class ChatWording(Wording):
    id_prefix = "chatcmpl-"

    def __init__(self, tokenizer: Tokenizer, body: ChatBody, tool_use: ToolUse | None) -> None:
        self._tokenizer = tokenizer
        self._body = body
        self._tool_use = tool_use
        self._tool_calls: dict[int, ToolCalls] = {}  # by choice that has begun

    def answer(
        self, head: Head, outputs: list[CompletionOutput], generation: Generation
    ) -> ChatCompletion:
        return {
            **head,
            "object": "chat.completion",
            **self.report(generation.prompts),
            "choices": [self._whole_choice(output) for output in outputs],
            "usage": generation.usage(),
            "pyengine": generation.info(),
        }

    def empty_chunk(self, head: Head, extra: ChunkExtra) -> ChatCompletionChunk:
        return {**head, "object": "chat.completion.chunk", **extra, "choices": []}

    def opening(self, num_choices: int) -> list[ChatChunkChoice]:
        return [
            {
                "index": index,
                "delta": {"role": "assistant", "content": None if self._calls(index) else ""},
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
            }
            for index in range(num_choices)
        ]

    def report(self, prompts: list[PromptOutput]) -> PromptReport:
        [prompt] = prompts
        report: PromptReport = {}
        if self._body.return_token_ids:
            report["prompt_token_ids"] = prompt.token_ids
        if self._body.prompt_logprobs is not None and prompt.logprobs is not None:
            report["prompt_logprobs"] = prompt_logprobs(
                self._tokenizer, prompt.logprobs, self._body.prompt_logprobs
            )
        return report

    def _whole_choice(self, output: CompletionOutput) -> ChatChoice:
        text, calls, finish_reason = self._split(output.index, output)
        message: AnswerMessage = {"role": "assistant", "content": text}
        if calls:
            message["content"] = text or None
            message["tool_calls"] = [_whole_call(call) for call in calls]
        choice: ChatChoice = {
            "index": output.index,
            "message": message,
            "logprobs": self._logprobs(output.logprobs),
            "finish_reason": finish_reason,
            "stop_reason": output.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = output.token_ids
        return choice

    def chunk(
        self, index: int, delta: SequenceDelta, prompt: PromptOutput
    ) -> ChatChunkChoice | None:
        text, calls, finish_reason = self._split(index, delta)
        has_more = finish_reason or delta.logprobs or self._body.return_token_ids
        if not (text or calls or has_more):
            return None
        news: Delta = {"content": text} if text else {}
        if calls:
            news["tool_calls"] = calls
        choice: ChatChunkChoice = {
            "index": index,
            "delta": news,
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = delta.token_ids
        return choice

    def _split(
        self, index: int, part: CompletionOutput | SequenceDelta
    ) -> tuple[str, list[ToolCallPiece], FinishReason | Literal["tool_calls"] | None]:
        """-> the text, the calls of tools, and why the choice ended, if it did."""
        if self._tool_use is None:
            return part.text, [], part.finish_reason
        if index not in self._tool_calls:
            self._tool_calls[index] = self._tool_use.new_calls()
        tool_calls = self._tool_calls[index]
        is_end = part.finish_reason is not None
        text, calls = tool_calls.push(part.text, is_end=is_end)
        # A stop string may have cut a call.
        if part.finish_reason == "stop" and part.stop_reason is None and tool_calls.has_calls:
            return text, calls, "tool_calls"
        return text, calls, part.finish_reason

    def _calls(self, index: int) -> bool:
        """Whether a choice has begun a call."""
        return index in self._tool_calls and self._tool_calls[index].has_calls

    def _logprobs(self, logprobs: list[TokenLogprobs] | None) -> ChatLogprobs | None:
        return None if logprobs is None else chat_logprobs(self._tokenizer, logprobs)


def _whole_call(call: ToolCallPiece) -> AnswerToolCall:
    """Of the one piece that a call is in when all of the text is there."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    check_accepting(request.app)
    body = await read_body(request, ChatBody)
    check_model(request.app, body.model)
    try:
        return await _respond(request, body)
    except InvalidRequestError as error:
        raise renamed(error, body.names) from None


async def _respond(request: web.Request, body: ChatBody) -> web.StreamResponse:
    params = body.sampling_params(sampling_defaults(request.app))
    tool_use = ToolUse(request.app, body) if body.usable_tools else None
    if tool_use is not None:
        constrain = partial(tool_use.constrain, params)
        params = await run_text_work(request.app, True, constrain)  # schemas may be large
    prompt = await encode_conversation(request.app, body.conversation(body.messages))
    prompts = truncate_prompts(request.app, [prompt], body.truncate_prompt_tokens, params)
    wording = ChatWording(request.app[ENGINE].tokenizer, body, tool_use)
    return await respond(request, body, prompts, params, wording)
