"""How much the KV cache will be asked for by what runs."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(frozen=True)
class Growth:
    """A sequence as it will go on: a token a step, until it ends and gives its blocks back."""

    num_tokens: int
    num_blocks: int  # held now
    num_steps_left: int  # at least 1; after the last its blocks are free


def peak_growth(growths: Seq[Growth], num_steps: int, block_size: int) -> int:
    """How many blocks more than now are held at once at most, during the next `num_steps` steps.

    The demand rises until a sequence ends, so that it is highest in some sequence's last step, or
    in the last of all. A block that two sequences share counts for each of them.
    """

    def held_after(growth: Growth, step: int) -> int:
        # The token sampled in a step gets its slot in the next one.
        return -(-(growth.num_tokens + step - 1) // block_size)

    last_steps = {min(g.num_steps_left, num_steps) for g in growths}
    return max(
        sum(
            (held_after(g, step) if g.num_steps_left >= step else 0) - g.num_blocks for g in growths
        )
        for step in last_steps
    )
