"""From sampled tokens to what the client reads: text, stops, log-probabilities."""

from collections.abc import Sequence

from pyengine.outputs import FinishReason, RequestTimings, SequenceDelta, TokenLogprobs
from pyengine.sampling_params import SamplingParams
from pyengine.structured import GrammarMatcher
from pyengine.text.detokenizer import Detokenizer, StopStringMatcher
from pyengine.text.tokenizer import Tokenizer


class SequenceOutput:
    """The output side of one sequence. Owned by the engine's thread.

    It sees each generated token once, in order, and so knows nothing of preemptions: what was
    emitted stays emitted. So the place in the grammar is kept here too.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer,
        max_tokens: int,
        grammar: GrammarMatcher | None = None,
    ) -> None:
        self.finish_reason: FinishReason | None = None if max_tokens else "length"
        self.num_prompt_logprobs = 0
        self._index = index
        self._params = params
        self._max_tokens = max_tokens
        self._grammar = grammar
        self._ignored_eos_token_ids = tokenizer.eos_token_ids if params.ignore_eos else frozenset()
        self._eos_token_ids = frozenset() if params.ignore_eos else tokenizer.eos_token_ids
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._matcher = StopStringMatcher(
            params.stop, include_stop=params.include_stop_str_in_output
        )
        self._num_tokens = 0
        self._stop_reason: str | int | None = None
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs | None] | None = [None]

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """The tokens that end the sequence, which `min_tokens` keeps from being sampled."""
        return self._eos_token_ids | self._stop_token_ids

    @property
    def num_tokens_left(self) -> int:
        """How many tokens the sequence may still get, unless it ends before."""
        return self._max_tokens - self._num_tokens

    @property
    def has_grammar(self) -> bool:
        return self._grammar is not None

    def allowed_tokens(self) -> bytes:
        """The tokens that the grammar allows next, as GrammarMatcher tells them. Those that would
        end the sequence too early are left out while there are others."""
        assert self._grammar is not None
        avoided = self._ignored_eos_token_ids
        if self._num_tokens < self._params.min_tokens:
            avoided |= self.ending_token_ids
        return self._grammar.allowed_tokens(avoided)

    def append(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Takes a generated token; sets `finish_reason` if it is the last.

        Raises:
            GrammarTooComplexError: following the grammar takes too much work.
        """
        if self._grammar is not None:
            self._grammar.accept(token_id)
        self._num_tokens += 1
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        may_stop = self._num_tokens >= self._params.min_tokens
        if may_stop and token_id in self._stop_token_ids:
            self.finish_reason, self._stop_reason = "stop", token_id
        elif may_stop and token_id in self._eos_token_ids:
            self.finish_reason = "stop"
        if self.finish_reason is None or self._params.include_stop_str_in_output:
            self._add_text(self._detokenizer.push(token_id), may_stop)
        if self.finish_reason is None and self._grammar is not None and self._grammar.is_finished:
            self.finish_reason = "stop"
        if self.finish_reason is None and self._num_tokens >= self._max_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None and self._matcher.matched is None:
            self._add_text(self._detokenizer.flush(), may_stop)
            self._text += self._matcher.flush()

    def extend_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Takes the log-probabilities of the next tokens of the prompt."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs += logprobs
        self.num_prompt_logprobs += len(logprobs)

    def take_delta(self, timings: RequestTimings | None, error: Exception | None) -> SequenceDelta:
        """What came since the last call."""
        delta = SequenceDelta(
            index=self._index,
            text=self._text,
            token_ids=self._token_ids,
            logprobs=None if self._params.logprobs is None else self._logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            timings=timings,
            error=error,
        )
        self._text, self._token_ids, self._logprobs = "", [], []
        return delta

    def take_prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """The prompt's log-probabilities, once and if they were asked for; the first token has
        none."""
        if self._params.prompt_logprobs is None:
            return None
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return taken

    def _add_text(self, text: str, may_stop: bool) -> None:
        if not may_stop:
            self._text += text
            return
        self._text += self._matcher.push(text)
        if self._matcher.matched is not None and self.finish_reason is None:
            self.finish_reason, self._stop_reason = "stop", self._matcher.matched
