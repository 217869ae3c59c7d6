"""Which blocks of the KV cache belong to which sequence."""

from dataclasses import dataclass

from pyengine._loader import load_core
from pyengine.engine.cache_salts import CacheSalts
from pyengine.engine.faults import FaultInjection
from pyengine.engine.sequence import Sequence


@dataclass(frozen=True)
class _Refusal:
    """What was found when a sequence was not admitted, and none was since."""

    sequence_id: int
    num_needed_blocks: int  # of those that nobody holds
    num_registered_blocks: int  # by any sequence, until then


class KVCacheManager:
    """Gives blocks to sequences and takes them back. Owned by the engine's thread.

    Every method either does all that it says, or changes nothing.

    Args:
        num_blocks: blocks in the cache.
        block_size: tokens per block.
        enable_prefix_caching: let a sequence start with blocks that another one computed.
        faults: allocations to fail, for tests.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        faults: FaultInjection | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._allocator = load_core().BlockAllocator(num_blocks, block_size)
        self._enable_prefix_caching = enable_prefix_caching
        self._salts = CacheSalts(num_blocks)  # no more can have a block each
        self._faults = faults or FaultInjection()
        self._num_allocations = 0
        self._num_registered_blocks = 0
        self._refusal: _Refusal | None = None
        self.num_used_blocks_ever = 0  # blocks [0, ...) were handed out, later ones never

    @property
    def num_free_blocks(self) -> int:
        return self._allocator.num_free_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def num_cacheable_tokens(self, sequence: Sequence) -> int:
        """How many leading tokens, in whole blocks, may at most be found in the prefix cache."""
        if not self._enable_prefix_caching:
            return 0
        return sequence.num_shareable_tokens // self.block_size * self.block_size

    def admit(self, sequence: Sequence, *, num_spare_blocks: int) -> bool:
        """Gives a sequence that holds no block all those for its tokens so far, the longest
        cached prefix first, and sets `num_computed_tokens` to that prefix's length.

        Returns:
            False if afterwards fewer than `num_spare_blocks` would be free.
        """
        num_for_newcomer = self._allocator.num_free_blocks - num_spare_blocks
        if self._is_refused_still(sequence, num_for_newcomer):
            return False
        prefix, num_unheld, chain_id = self._match_prefix(sequence)
        num_needed = self.num_blocks_for(sequence.num_tokens) - len(prefix) + num_unheld
        if num_needed > num_for_newcomer:
            self._refusal = _Refusal(sequence.sequence_id, num_needed, self._num_registered_blocks)
            return False
        self._refusal = None
        self._allocator.acquire(prefix)
        sequence.block_table = prefix
        sequence.num_computed_tokens = len(prefix) * self.block_size
        sequence.num_registered_blocks = len(prefix)
        sequence.chain_id = chain_id
        if not self.grow(sequence):
            self.release(sequence)
            return False
        return True

    def grow(self, sequence: Sequence, num_draft_tokens: int = 0) -> bool:
        """Extends the block table to hold all of the sequence's tokens, and so many guessed ones
        after them; False if blocks lack."""
        num_tokens = sequence.num_tokens + num_draft_tokens
        num_new = self.num_blocks_for(num_tokens) - len(sequence.block_table)
        if num_new <= 0:
            return True
        self._num_allocations += 1
        if self._num_allocations - 1 in self._faults.fail_allocations:
            return False
        if num_new > self._allocator.num_free_blocks:
            return False
        new_blocks = self._allocator.allocate(num_new)
        sequence.block_table += new_blocks
        self.num_used_blocks_ever = max(self.num_used_blocks_ever, max(new_blocks) + 1)
        return True

    def register(self, sequence: Sequence) -> None:
        """Offers the sequence's full and computed blocks to the prefix cache."""
        if not self._enable_prefix_caching:
            return
        size = self.block_size
        for i in range(sequence.num_registered_blocks, sequence.num_computed_tokens // size):
            sequence.chain_id = self._allocator.cache_block(
                sequence.chain_id,
                sequence.block_table[i],
                sequence.token_ids[i * size : (i + 1) * size],
            )
            sequence.num_registered_blocks = i + 1
            self._num_registered_blocks += 1

    def release(self, sequence: Sequence) -> None:
        """Takes all blocks back; what they hold stays in the prefix cache until evicted."""
        self._allocator.free(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0
        sequence.chain_id = 0

    def clear_prefix_cache(self) -> None:
        """Forgets what the blocks hold."""
        self._allocator.clear_cache()

    def check_invariants(self, holders: list[Sequence]) -> None:
        """Checks the allocator, and that its references are those of `holders`' tables.

        Raises:
            RuntimeError: naming the block at fault.
        """
        self._allocator.check_invariants()
        expected = [0] * self.num_blocks
        for sequence in holders:
            for block in sequence.block_table:
                expected[block] += 1
        for block, count in enumerate(expected):
            if self._allocator.ref_count(block) != count:
                raise RuntimeError(
                    f"block {block} has {self._allocator.ref_count(block)} references, "
                    f"the block tables hold {count}"
                )

    def _is_refused_still(self, sequence: Sequence, num_for_newcomer: int) -> bool:
        """Whether so many blocks are too few for the sequence refused last, without a look at its
        prefix: that would take a millisecond for 100,000 tokens, in every step that it waits. It
        needs one block less at most for each that was registered since: where no sequence is
        admitted, no other block becomes both held and cached."""
        refusal = self._refusal
        if refusal is None or refusal.sequence_id != sequence.sequence_id:
            return False
        num_registered_since = self._num_registered_blocks - refusal.num_registered_blocks
        return refusal.num_needed_blocks - num_registered_since > num_for_newcomer

    def _match_prefix(self, sequence: Sequence) -> tuple[list[int], int, int]:
        """The cached blocks that a sequence may start with, how many of them nobody holds, and
        the chain id of the last."""
        root = self._salts.root(sequence.cache_salt)
        num_tokens = self.num_cacheable_tokens(sequence)
        if num_tokens == 0:
            return [], 0, root
        match = self._allocator.match_prefix(sequence.token_ids[:num_tokens], root)
        return match.block_ids, match.num_free, match.chain_id
