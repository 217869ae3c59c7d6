"""POST /v1/chat/completions."""

from typing import Any

from aiohttp import web

from pyengine.outputs import CompletionOutput, SequenceDelta, TokenLogprobs
from pyengine.server.answers import Choice, PromptReport
from pyengine.server.body import read_body
from pyengine.server.context import ENGINE
from pyengine.server.generation import PromptOutput
from pyengine.server.logprobs import chat_logprobs, prompt_logprobs
from pyengine.server.prompts import encode_conversation, truncate_prompts
from pyengine.server.protocol import ChatBody
from pyengine.server.respond import (
    Wording,
    check_accepting,
    check_model,
    respond,
    sampling_defaults,
)
from pyengine.text.tokenizer import Tokenizer


class ChatWording(Wording):
    id_prefix = "chatcmpl-"
    answer_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, body: ChatBody) -> None:
        self._tokenizer = tokenizer
        self._body = body

    def opening(self, num_choices: int) -> list[Choice]:
        return [
            {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
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

    def choice(self, output: CompletionOutput, prompt: PromptOutput) -> Choice:
        choice: Choice = {
            "index": output.index,
            "message": {"role": "assistant", "content": output.text},
            "logprobs": self._logprobs(output.logprobs),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        return self._with_token_ids(choice, output.token_ids)

    def chunk(self, index: int, delta: SequenceDelta, prompt: PromptOutput) -> Choice:
        choice: Choice = {
            "index": index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        return self._with_token_ids(choice, delta.token_ids)

    def _with_token_ids(self, choice: Choice, token_ids: list[int]) -> Choice:
        if self._body.return_token_ids:
            choice["token_ids"] = token_ids
        return choice

    def _logprobs(self, logprobs: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        return None if logprobs is None else chat_logprobs(self._tokenizer, logprobs)


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    check_accepting(request.app)
    body = await read_body(request, ChatBody)
    check_model(request.app, body.model)
    params = body.sampling_params(sampling_defaults(request.app))
    prompt = await encode_conversation(request.app, body.conversation(body.messages))
    prompts = truncate_prompts(request.app, [prompt], body.truncate_prompt_tokens, params)
    wording = ChatWording(request.app[ENGINE].tokenizer, body)
    return await respond(request, body, prompts, params, wording)
