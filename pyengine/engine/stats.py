"""What an engine tells of itself."""

from dataclasses import dataclass


# Not frozen, since one is made in each step: that takes three times as long.
@dataclass(slots=True)
class EngineStats:
    """The engine at one moment: gauges, and counters since it started. Not to be changed."""

    num_waiting: int  # sequences that wait, preempted ones among them
    num_running: int
    num_blocks: int
    num_used_blocks: int
    num_accepted_requests: int
    num_accepted_sequences: int  # n of each request
    num_prompt_tokens: int  # of accepted requests
    num_generated_tokens: int
    num_prefix_queried_tokens: int  # prompt tokens looked up in the prefix cache
    num_cached_tokens: int  # ... and found, at first admission
    num_recomputed_tokens: int
    num_draft_tokens: int  # guessed ahead
    num_accepted_draft_tokens: int  # ... and right
    num_preemptions: int
    num_aborted_requests: int
    num_timed_out_requests: int
    num_steps: int
