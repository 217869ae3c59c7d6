"""The one way through the engine, for completions and chat, streamed or not."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from aiohttp import web

from pyengine.outputs import RequestUpdate, SequenceDelta, TokenLogprobs
from pyengine.sampling_params import SamplingParams
from pyengine.server.answers import ChoiceInfo, PyengineInfo, Usage
from pyengine.server.context import ARRIVAL_NS, ENGINE, METRICS
from pyengine.server.prompts import Prompt
from pyengine.server.protocol import GenerationBody


@dataclass
class PromptOutput:
    """A prompt and what was found out about it."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None = None  # with the first delta, if asked for


class Generation:
    """The requests of one HTTP call, one a prompt, and what is known of them so far.

    Choice `prompt * n + k` is the k-th sequence of a prompt.

    Raises:
        InvalidRequestError: a request can never be served; `param` names the field at fault.
    """

    def __init__(
        self,
        request: web.Request,
        call_id: str,
        prompts: list[Prompt],
        params: SamplingParams,
        body: GenerationBody,
    ) -> None:
        self.num_choices = len(prompts) * params.n
        self._engine = request.app[ENGINE]
        self._metrics = request.app[METRICS]
        self._n = params.n
        # Without a seed of the client's each request draws its own, lest equal prompts get equal
        # answers; with one, each gets what it would get alone.
        self._requests = [
            self._engine.new_request(
                f"{call_id}-{index}",
                prompt.token_ids,
                params,
                prompt=prompt.text,
                priority=body.priority,
                timeout_s=body.timeout,
                cache_salt=body.cache_salt,
                arrival_ns=request[ARRIVAL_NS],
            )
            for index, prompt in enumerate(prompts)
        ]
        self.prompts = [PromptOutput(prompt.token_ids) for prompt in prompts]
        self._prompt_of = {r.request_id: index for index, r in enumerate(self._requests)}
        self._num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._num_cached_tokens = [0] * len(prompts)
        self._num_completion_tokens = 0
        self._infos: dict[int, ChoiceInfo] = {}  # of the finished choices

    async def steps(self) -> AsyncGenerator[list[tuple[int, SequenceDelta]], None]:
        """What the engine's steps added since the last time, as (choice index, delta). Closing it
        aborts.

        Raises:
            Exception: the engine refused a request (before the first item), or one failed.
        """
        async with aclosing(self._engine.generate_all(self._requests)) as batches:
            async for updates in batches:
                yield [item for update in updates for item in self._take(update)]

    @property
    def is_finished(self) -> bool:
        return len(self._infos) == self.num_choices

    def prompt_of(self, choice: int) -> PromptOutput:
        """The prompt that a choice goes on from."""
        return self.prompts[choice // self._n]

    @property
    def has_prompt_logprobs(self) -> bool:
        """Of which there may be many."""
        return any(prompt.logprobs is not None for prompt in self.prompts)

    def usage(self) -> Usage:
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_completion_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached_tokens)},
        }

    def info(self) -> PyengineInfo:
        return {"choices": [self._infos[choice] for choice in sorted(self._infos)]}

    def _take(self, update: RequestUpdate) -> list[tuple[int, SequenceDelta]]:
        prompt = self._prompt_of[update.request_id]
        self._num_cached_tokens[prompt] = update.num_cached_tokens
        if update.prompt_logprobs is not None:
            self.prompts[prompt].logprobs = update.prompt_logprobs
        items = []
        for delta in update.deltas:
            if delta.error is not None:
                raise delta.error
            choice = prompt * self._n + delta.index
            self._num_completion_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                self._metrics.observe_finished(delta)
                self._infos[choice] = {
                    "index": choice,
                    "seed": self._requests[prompt].seed_of(delta.index),
                    "timings": delta.timings,
                }
            items.append((choice, delta))
        return items
