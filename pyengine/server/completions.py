"""POST /v1/completions."""

from aiohttp import web

from pyengine.outputs import CompletionOutput, SequenceDelta
from pyengine.sampling_params import SamplingParams
from pyengine.server.answers import ChunkExtra, Completion, CompletionChoice, CompletionChunk, Head
from pyengine.server.body import read_body
from pyengine.server.context import ENGINE
from pyengine.server.generation import Generation, PromptOutput
from pyengine.server.logprobs import CompletionLogprobs, joined, prompt_logprobs
from pyengine.server.prompts import echo_prompts, encode_prompts, truncate_prompts
from pyengine.server.protocol import CompletionBody
from pyengine.server.respond import (
    Wording,
    check_accepting,
    check_model,
    respond,
    sampling_defaults,
)
from pyengine.text.tokenizer import Tokenizer


class CompletionWording(Wording):
    id_prefix = "cmpl-"

    def __init__(
        self,
        tokenizer: Tokenizer,
        body: CompletionBody,
        params: SamplingParams,
        echoes: list[str] | None,
    ) -> None:
        """`echoes` has the text of each prompt, if choices are to begin with it."""
        self._tokenizer = tokenizer
        self._body = body
        self._params = params
        self._echoes = echoes
        self._logprobs: dict[int, CompletionLogprobs] = {}  # by choice that has begun

    def answer(
        self, head: Head, outputs: list[CompletionOutput], generation: Generation
    ) -> Completion:
        return {
            **head,
            "object": "text_completion",
            "choices": [self._choice(o.index, o, generation.prompt_of(o.index)) for o in outputs],
            "usage": generation.usage(),
            "pyengine": generation.info(),
        }

    def empty_chunk(self, head: Head, extra: ChunkExtra) -> CompletionChunk:
        return {**head, "object": "text_completion", **extra, "choices": []}

    def chunk(self, index: int, delta: SequenceDelta, prompt: PromptOutput) -> CompletionChoice:
        return self._choice(index, delta, prompt)

    def _choice(
        self, index: int, part: CompletionOutput | SequenceDelta, prompt: PromptOutput
    ) -> CompletionChoice:
        is_first = index not in self._logprobs
        if is_first:
            self._logprobs[index] = CompletionLogprobs(
                self._tokenizer, skip_special_tokens=self._params.skip_special_tokens
            )
        text, logprobs = part.text, None
        if is_first and self._echoes is not None:
            echo = self._echoes[index // self._params.n]
            text = echo + text
            if self._body.logprobs is not None:
                logprobs = self._logprobs[index].echo(echo, prompt, self._body.logprobs)
        if part.logprobs is not None:
            logprobs = joined(logprobs, self._logprobs[index].extend(part.logprobs))
        choice: CompletionChoice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = part.token_ids
            if is_first:
                choice["prompt_token_ids"] = prompt.token_ids
        if self._body.prompt_logprobs is not None and prompt.logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(
                self._tokenizer, prompt.logprobs, self._body.prompt_logprobs
            )
        return choice


async def create_completion(request: web.Request) -> web.StreamResponse:
    check_accepting(request.app)
    body = await read_body(request, CompletionBody)
    check_model(request.app, body.model)
    params = body.sampling_params(sampling_defaults(request.app))
    prompts = await encode_prompts(request.app, body.prompt, params.n)
    prompts = truncate_prompts(request.app, prompts, body.truncate_prompt_tokens, params)
    echoes = None
    if body.echo:
        echoes = await echo_prompts(
            request.app, prompts, skip_special_tokens=params.skip_special_tokens
        )
    wording = CompletionWording(request.app[ENGINE].tokenizer, body, params, echoes)
    return await respond(request, body, prompts, params, wording)
