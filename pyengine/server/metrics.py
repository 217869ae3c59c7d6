"""What /metrics tells, in Prometheus' text format.

Names are vLLM's, with `pyengine:` for `vllm:`, where the meaning is the same. Gauges and counters
are read from the engine when they are asked for; histograms get one sample for each choice that
has finished, from its timings. So a preemption or a chunk of a prefill leaves no sample.

    num_requests_running, num_requests_waiting       gauge    sequences
    num_kv_blocks, num_used_kv_blocks                gauge    blocks of the KV cache
    kv_cache_usage_perc                              gauge    used share of the blocks, 0 to 1
    prompt_tokens_total, generation_tokens_total     counter  tokens received and generated
    prefix_cache_queries_total                       counter  prompt tokens looked up in the cache
    prefix_cache_hits_total                          counter  ... and found, at first admission
    recomputed_tokens_total                          counter  tokens fed again after a preemption
    spec_decode_num_draft_tokens_total               counter  tokens guessed ahead
    spec_decode_num_accepted_tokens_total            counter  ... and right
    num_preemptions_total                            counter
    engine_steps_total                               counter
    requests_aborted_total                           counter
    requests_timed_out_total                         counter  ended by their timeouts
    request_success_total{finished_reason}           counter  choices that have finished
    time_to_first_token_seconds                      histogram  from arrival
    request_queue_time_seconds                       histogram  from arrival to the first step
    e2e_request_latency_seconds                      histogram  from arrival to the end
    request_time_per_output_token_seconds            histogram  mean gap between a choice's tokens
    http_requests_total{path,status}                 counter  499: the client went away
"""

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyengine.engine import AsyncEngine
from pyengine.outputs import SequenceDelta

PREFIX = "pyengine:"

_REQUEST_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160),
)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)


class EngineCollector(Collector):
    """Reads the engine's counters at each scrape."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        usage = stats.num_used_blocks / stats.num_blocks
        for name, help_text, value in (
            ("num_requests_running", "Sequences that hold blocks.", stats.num_running),
            ("num_requests_waiting", "Sequences that wait for a place.", stats.num_waiting),
            ("num_kv_blocks", "Blocks in the KV cache.", stats.num_blocks),
            ("num_used_kv_blocks", "Blocks that sequences hold.", stats.num_used_blocks),
            ("kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.", usage),
        ):
            yield GaugeMetricFamily(PREFIX + name, help_text, value)
        for name, help_text, value in (
            ("prompt_tokens", "Prompt tokens of admitted requests.", stats.num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.num_generated_tokens),
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                stats.num_prefix_queried_tokens,
            ),
            (
                "prefix_cache_hits",
                "Prompt tokens found in the prefix cache, at first admission.",
                stats.num_cached_tokens,
            ),
            (
                "recomputed_tokens",
                "Tokens fed again after a preemption.",
                stats.num_recomputed_tokens,
            ),
            (
                "spec_decode_num_draft_tokens",
                "Tokens guessed ahead by prompt look-up.",
                stats.num_draft_tokens,
            ),
            (
                "spec_decode_num_accepted_tokens",
                "Tokens guessed ahead that proved right.",
                stats.num_accepted_draft_tokens,
            ),
            ("num_preemptions", "Preemptions of a sequence.", stats.num_preemptions),
            ("engine_steps", "Steps of the engine.", stats.num_steps),
            ("requests_aborted", "Requests aborted before their end.", stats.num_aborted_requests),
            (
                "requests_timed_out",
                "Requests ended by their timeouts.",
                stats.num_timed_out_requests,
            ),
        ):
            yield CounterMetricFamily(PREFIX + name, help_text, value)


class Metrics:
    """The metrics of one server. Lives on the event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine))
        ProcessCollector(registry=self._registry)
        self._finished = Counter(
            PREFIX + "request_success",
            "Choices that have finished.",
            ["finished_reason"],
            registry=self._registry,
        )
        self._time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _REQUEST_BUCKETS_S
        )
        self._queue_time = self._histogram(
            "request_queue_time_seconds", "From arrival to the first step.", _REQUEST_BUCKETS_S
        )
        self._latency = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the end.", _REQUEST_BUCKETS_S
        )
        self._time_per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean gap between the tokens of a choice.",
            _TOKEN_BUCKETS_S,
        )
        self._http_requests = Counter(
            PREFIX + "http_requests",
            "HTTP requests answered; for a stream, with the status it began with.",
            ["path", "status"],
            registry=self._registry,
        )

    def observe_finished(self, delta: SequenceDelta) -> None:
        """Takes the last delta of a sequence."""
        self._finished.labels(delta.finish_reason).inc()
        if (timings := delta.timings) is None:
            return
        self._queue_time.observe(timings.queue_wait_ms / 1e3)
        self._latency.observe(timings.total_ms / 1e3)
        if timings.time_to_first_token_ms is not None:
            self._time_to_first_token.observe(timings.time_to_first_token_ms / 1e3)
        if timings.decode_tokens_per_s is not None:
            self._time_per_token.observe(1 / timings.decode_tokens_per_s)

    def observe_response(self, path: str, status: int) -> None:
        self._http_requests.labels(path, status).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, help_text, buckets=buckets, registry=self._registry)
