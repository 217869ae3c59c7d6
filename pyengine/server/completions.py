"""POST /v1/completions."""

from typing import Any

from aiohttp import web

from pyengine.outputs import CompletionOutput, SequenceDelta
from pyengine.server.answers import Choice
from pyengine.server.body import read_body
from pyengine.server.context import ENGINE
from pyengine.server.logprobs import CompletionLogprobs
from pyengine.server.prompts import encode_prompts
from pyengine.server.protocol import CompletionBody
from pyengine.server.respond import Wording, check_accepting, check_model, respond
from pyengine.text.tokenizer import Tokenizer


class CompletionWording(Wording):
    id_prefix = "cmpl-"
    answer_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._logprobs: dict[int, CompletionLogprobs] = {}  # by choice

    def choice(self, output: CompletionOutput) -> Choice:
        return self._choice(output.index, output)

    def chunk(self, index: int, delta: SequenceDelta) -> Choice:
        return self._choice(index, delta)

    def _choice(self, index: int, part: CompletionOutput | SequenceDelta) -> Choice:
        logprobs: dict[str, Any] | None = None
        if part.logprobs is not None:
            if index not in self._logprobs:
                self._logprobs[index] = CompletionLogprobs(
                    self._tokenizer, skip_special_tokens=self._skip_special_tokens
                )
            logprobs = self._logprobs[index].extend(part.logprobs)
        return {
            "index": index,
            "text": part.text,
            "logprobs": logprobs,
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
        }


async def create_completion(request: web.Request) -> web.StreamResponse:
    check_accepting(request.app)
    body = await read_body(request, CompletionBody)
    check_model(request.app, body.model)
    params = body.sampling_params()
    prompts = await encode_prompts(request.app, body.prompt)
    wording = CompletionWording(
        request.app[ENGINE].tokenizer, skip_special_tokens=params.skip_special_tokens
    )
    return await respond(request, body, prompts, params, wording)
