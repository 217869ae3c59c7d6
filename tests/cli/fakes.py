"""A language model that answers each prompt with the same words."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from pyengine.outputs import (
    CompletionOutput,
    RequestOutput,
    RequestTimings,
    RequestUpdate,
    SequenceDelta,
)
from pyengine.sampling_params import SamplingParams

WORDS = ["Paris", ",", " of", " course"]


class FakeLLM:
    """Takes the place of `pyengine.LLM`, and keeps what it was asked."""

    def __init__(self, **config: Any) -> None:
        self.config = config
        self.calls: list[tuple[str, Any, SamplingParams]] = []
        self.tokenizer = SimpleNamespace(vocab_size=100)
        self.engine = SimpleNamespace(max_sequence_len=64)
        self.num_closed_streams = 0

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[RequestUpdate]:
        self.calls.append(("stream", prompt, params))
        return self._updates()

    def stream_chat(
        self, messages: Sequence[dict[str, str]], params: SamplingParams
    ) -> Iterator[RequestUpdate]:
        self.calls.append(("stream_chat", list(messages), params))
        return self._updates()

    def generate(self, prompts: list[Any], params: SamplingParams) -> list[RequestOutput]:
        self.calls.append(("generate", prompts, params))
        timings = RequestTimings(1.0, 11.0, 100.0, 111.0, 10.0, 0, 0, 0.0)
        return [
            RequestOutput(
                request_id=str(number),
                prompt=None,
                prompt_token_ids=[],
                outputs=[
                    CompletionOutput(index=index, text=f"text {number}.{index}", timings=timings)
                    for index in range(params.n)
                ],
                seed=0,
            )
            for number, _ in enumerate(prompts)
        ]

    def _updates(self) -> Iterator[RequestUpdate]:
        try:
            for number, word in enumerate(WORDS):
                delta = SequenceDelta(index=0, text=word, token_ids=[number])
                yield RequestUpdate("r", [delta], 0, None, finished=word == WORDS[-1])
        finally:
            self.num_closed_streams += 1
