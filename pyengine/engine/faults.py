"""Faults on demand, for tests."""

from collections.abc import Callable
from dataclasses import dataclass, field


def _no_fault(stage: str, step: int) -> None:
    return None


@dataclass
class FaultInjection:
    """What goes wrong, and when. The default is nothing.

    Args:
        preempt_at_steps: steps (counted from 0) at whose start the youngest running sequence is
            preempted, even if it is the only one.
        fail_allocations: calls of KVCacheManager.grow (counted from 0) that find no block.
        before_stage: called with the name of each stage of a step ("inputs", "forward", "sample",
            "outputs") and the step's number; what it raises, the stage raises.
    """

    preempt_at_steps: frozenset[int] = frozenset()
    fail_allocations: frozenset[int] = frozenset()
    before_stage: Callable[[str, int], None] = field(default=_no_fault)
