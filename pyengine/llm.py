"""The engine for a script: prompts in, results out."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyengine.config import EngineConfig
from pyengine.engine import Engine, Request
from pyengine.errors import InvalidRequestError
from pyengine.outputs import CompletionOutput, RequestOutput, RequestUpdate
from pyengine.sampling_params import SamplingParams
from pyengine.text.conversation import Conversation
from pyengine.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


class LLM:
    """A model in this process.

    >>> llm = LLM("smollm2-135m-instruct")
    >>> [output] = llm.generate("The capital of France is", SamplingParams(temperature=0))

    Args:
        model: a folder, a .gguf file, a hub name, or the demo's name.
        show_progress: draw progress bars while fetching and loading.
        options: the other fields of EngineConfig.

    Raises:
        ModelLoadError: the model's files are missing, broken or unsupported.
        ValueError: an option is out of range.
    """

    def __init__(self, model: str, *, show_progress: bool = False, **options: Any) -> None:
        config = EngineConfig(model=str(model), **options)
        self._engine = Engine.from_config(config, show_progress=show_progress)
        self._request_ids = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.loaded.tokenizer

    @property
    def engine(self) -> Engine:
        """The engine itself: its options and counters."""
        return self._engine

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """Completes prompts, batched; results in the prompts' order.

        Args:
            prompts: text or token ids, or a list of them.
            params: the same for all; the default is SamplingParams().

        Raises:
            InvalidRequestError: a prompt can't be served; then none is run.
            StepFailedError: a step failed.
        """
        requests = [self._new_request(p, params or SamplingParams()) for p in _as_list(prompts)]
        return self._run(requests)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> RequestOutput:
        """Answers a conversation of {"role": ..., "content": ...} messages.

        Raises:
            InvalidRequestError: the model has no chat template, or the request can't be served.
        """
        return self._run([self._new_chat_request(messages, params or SamplingParams())])[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[RequestUpdate]:
        """Completes one prompt; yields what each step adds. Leaving early aborts it."""
        return self._stream(self._new_request(prompt, params or SamplingParams()))

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> Iterator[RequestUpdate]:
        """Answers a conversation; yields what each step adds. Leaving early aborts it."""
        return self._stream(self._new_chat_request(messages, params or SamplingParams()))

    def _run(self, requests: list[Request]) -> list[RequestOutput]:
        outputs = {r.request_id: _empty_output(r) for r in requests}
        for request in requests:
            self._engine.add_request(request)
        try:
            while self._engine.has_unfinished:
                for update in self._engine.step():
                    outputs[update.request_id].extend(update)
        finally:
            for request_id in outputs:
                self._engine.abort_request(request_id)
        return list(outputs.values())

    def _stream(self, request: Request) -> Iterator[RequestUpdate]:
        self._engine.add_request(request)
        try:
            while self._engine.has_unfinished:
                for update in self._engine.step():
                    for delta in update.deltas:
                        if delta.error is not None:
                            raise delta.error
                    yield update
        finally:
            self._engine.abort_request(request.request_id)

    def _new_chat_request(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Request:
        template = self._engine.loaded.chat_template
        if template is None:
            raise InvalidRequestError("the model has no chat template", "messages")
        text, token_ids = Conversation(messages=messages).encode(self.tokenizer, template)
        return self._new_request(token_ids, params, text)

    def _new_request(
        self, prompt: Prompt, params: SamplingParams, text: str | None = None
    ) -> Request:
        if isinstance(prompt, str):
            text, token_ids = prompt, self.tokenizer.encode(prompt)
        else:
            token_ids = list(prompt)
        request_id = f"request-{next(self._request_ids)}"
        return self._engine.new_request(request_id, token_ids, params, prompt=text)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _empty_output(request: Request) -> RequestOutput:
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=[CompletionOutput(index=k) for k in range(request.params.n)],
        seed=request.seed,
    )
