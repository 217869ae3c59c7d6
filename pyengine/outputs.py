"""What the engine hands back: whole results, and the pieces they are streamed in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class TokenLogprobs:
    """One token's log-probability (natural log, before temperature and penalties) and the
    likeliest tokens at its place, best first."""

    token_id: int
    logprob: float
    rank: int  # 1 is the likeliest
    top_token_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True)
class RequestTimings:
    """Where the time of one sequence went. total_ms = queue_wait_ms + execution_ms.

    A preemption changes none of the stamps taken before it: it only adds to the last three.
    """

    queue_wait_ms: float  # from arrival until the first step that fed a token
    time_to_first_token_ms: float | None  # from arrival; None if there was no token
    execution_ms: float  # from that first step to the end, stalls included
    total_ms: float
    decode_tokens_per_s: float | None  # after the first token; None below two tokens
    num_preemptions: int
    num_recomputed_tokens: int
    stalled_ms: float  # time spent preempted


# The two that a step makes for every stream aren't frozen: that takes three times as long.


@dataclass(slots=True)
class SequenceDelta:
    """What one step added to one sequence of a request. Not to be changed."""

    index: int  # which of the request's n sequences
    text: str  # may be empty: held back by a stop string or an unfinished character
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # one per token, if asked for
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token id that matched
    timings: RequestTimings | None = None  # with finish_reason
    error: Exception | None = None  # with finish_reason "error"


@dataclass(slots=True)
class RequestUpdate:
    """What one step added to a request. Not to be changed."""

    request_id: str
    deltas: list[SequenceDelta]
    num_cached_tokens: int  # prompt tokens found in the prefix cache at first admission
    prompt_logprobs: list[TokenLogprobs | None] | None  # once, with the first delta; [0] is None
    finished: bool  # all n sequences have ended


@dataclass
class CompletionOutput:
    """One of the n sequences of a finished request."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    timings: RequestTimings | None = None

    def extend(self, delta: SequenceDelta) -> None:
        """Appends what a step added."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason
            self.timings = delta.timings


@dataclass
class RequestOutput:
    """The result of a request: its prompt and its n outputs, in index order."""

    request_id: str
    prompt: str | None  # None if the prompt came as token ids
    prompt_token_ids: Sequence[int]
    outputs: list[CompletionOutput]
    seed: int  # what the sampling noise was drawn from; replays the request
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    def extend(self, update: RequestUpdate) -> None:
        """Appends what a step added.

        Raises:
            Exception: the error that ended one of the sequences, if one did.
        """
        self.num_cached_tokens = update.num_cached_tokens
        if update.prompt_logprobs is not None:
            self.prompt_logprobs = update.prompt_logprobs
        for delta in update.deltas:
            if delta.error is not None:
                raise delta.error
            self.outputs[delta.index].extend(delta)
