"""POST /v1/chat/completions."""

from typing import Any

from aiohttp import web

from pyengine.outputs import CompletionOutput, SequenceDelta, TokenLogprobs
from pyengine.server.answers import Choice
from pyengine.server.body import read_body
from pyengine.server.context import ENGINE
from pyengine.server.logprobs import chat_logprobs
from pyengine.server.prompts import encode_messages
from pyengine.server.protocol import ChatBody
from pyengine.server.respond import Wording, check_accepting, check_model, respond
from pyengine.text.tokenizer import Tokenizer


class ChatWording(Wording):
    id_prefix = "chatcmpl-"
    answer_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

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

    def choice(self, output: CompletionOutput) -> Choice:
        return {
            "index": output.index,
            "message": {"role": "assistant", "content": output.text},
            "logprobs": self._logprobs(output.logprobs),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }

    def chunk(self, index: int, delta: SequenceDelta) -> Choice:
        return {
            "index": index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, logprobs: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        return None if logprobs is None else chat_logprobs(self._tokenizer, logprobs)


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    check_accepting(request.app)
    body = await read_body(request, ChatBody)
    check_model(request.app, body.model)
    params = body.sampling_params()
    prompt = await encode_messages(request.app, body.messages)
    wording = ChatWording(request.app[ENGINE].tokenizer)
    return await respond(request, body, [prompt], params, wording)
