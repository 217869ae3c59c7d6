"""The clock of one sequence."""

from dataclasses import dataclass

from pyengine.outputs import RequestTimings


@dataclass
class SequenceClock:
    """When things happened to a sequence, in nanoseconds of the monotonic clock.

    A preemption and the resume after it move no stamp that was set before: they only add to
    `stalled_ns`, `num_preemptions` and `num_recomputed_tokens`.
    """

    start_ns: int  # arrival
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    finish_ns: int | None = None
    preempted_ns: int | None = None  # since when it has been preempted
    stalled_ns: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0

    def on_scheduled(self, now_ns: int) -> None:
        """The sequence was admitted, for the first time or again."""
        if self.first_scheduled_ns is None:
            self.first_scheduled_ns = now_ns
        self._end_stall(now_ns)

    def on_token(self, now_ns: int) -> None:
        if self.first_token_ns is None:
            self.first_token_ns = now_ns

    def on_preempted(self, now_ns: int) -> None:
        self.num_preemptions += 1
        self.preempted_ns = now_ns

    def on_finished(self, now_ns: int) -> None:
        self._end_stall(now_ns)
        self.finish_ns = now_ns

    def summary(self, num_output_tokens: int) -> RequestTimings:
        """The timings of a finished sequence."""
        assert self.finish_ns is not None, "summary() is for finished sequences"
        scheduled_ns = (
            self.finish_ns if self.first_scheduled_ns is None else self.first_scheduled_ns
        )
        queue_wait_ms = (scheduled_ns - self.start_ns) / 1e6
        execution_ms = (self.finish_ns - scheduled_ns) / 1e6
        first_token_ms = decode_rate = None
        if self.first_token_ns is not None:
            first_token_ms = (self.first_token_ns - self.start_ns) / 1e6
            decode_ns = self.finish_ns - self.first_token_ns
            if num_output_tokens > 1 and decode_ns > 0:
                decode_rate = (num_output_tokens - 1) * 1e9 / decode_ns
        return RequestTimings(
            queue_wait_ms=queue_wait_ms,
            time_to_first_token_ms=first_token_ms,
            execution_ms=execution_ms,
            total_ms=queue_wait_ms + execution_ms,
            decode_tokens_per_s=decode_rate,
            num_preemptions=self.num_preemptions,
            num_recomputed_tokens=self.num_recomputed_tokens,
            stalled_ms=self.stalled_ns / 1e6,
        )

    def _end_stall(self, now_ns: int) -> None:
        if self.preempted_ns is not None:
            self.stalled_ns += now_ns - self.preempted_ns
            self.preempted_ns = None
