"""The block allocator against its slow twin, over random lives of random sequences."""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pyengine._core import OTHER_ROOTS, ROOT_CHAIN_ID, BlockAllocator, NoFreeBlocksError
from tests.core.allocator_model import OTHER_ROOT, ROOT, AllocatorModel, Prefix


@dataclass
class Holder:
    """A sequence: its tokens fill its block table; the first `num_cached` blocks were offered to
    the cache, and `prefix` is what came of the last of these."""

    token_ids: list[int]
    table: list[int]
    num_cached: int
    prefix: Prefix


class AllocatorMachine(RuleBasedStateMachine):
    """Few blocks and two different tokens, so that prefixes are shared, evicted, forgotten while
    in use, and cached anew all the time."""

    def __init__(self):
        super().__init__()
        self.holders: list[Holder] = []
        self.chain_ids = {ROOT: ROOT_CHAIN_ID, OTHER_ROOT: OTHER_ROOTS + 5}

    @initialize(
        num_blocks=st.integers(1, 12),
        block_size=st.integers(1, 2),
        hash_mask=st.sampled_from([2**64 - 1, 1, 0]),
    )
    def make(self, num_blocks, block_size, hash_mask):
        self.allocator = BlockAllocator(num_blocks, block_size, hash_mask=hash_mask)
        self.model = AllocatorModel(num_blocks, block_size)

    def pick_holder(self, data):
        return self.holders[data.draw(st.integers(0, len(self.holders) - 1), label="holder")]

    def allocate(self, n):
        """n blocks, or None when there are not as many."""
        expected = self.model.allocate(n)
        if expected is None:
            with pytest.raises(NoFreeBlocksError):
                self.allocator.allocate(n)
        else:
            assert self.allocator.allocate(n) == expected
        return expected

    def check_match(self, token_ids, root):
        """What the allocator finds is what the model finds."""
        table, prefix = self.model.match(token_ids, root)
        match = self.allocator.match_prefix(token_ids, self.chain_ids[root])
        assert match.block_ids == table
        assert match.num_free == sum(self.model.ref_counts[block] == 0 for block in table)
        assert match.chain_id == self.chain_ids[prefix]
        return table, prefix

    @rule(num_blocks=st.integers(0, 6), root=st.sampled_from([ROOT, OTHER_ROOT]), data=st.data())
    def admit(self, num_blocks, root, data):
        """A sequence starts with what is cached of it, if there is room for all of it."""
        size = num_blocks * self.model.block_size
        token_ids = data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
        table, prefix = self.check_match(token_ids, root)
        self.model.acquire(table)
        self.allocator.acquire(table)
        new = self.allocate(num_blocks - len(table))
        if new is None:
            self.model.release(table)
            self.allocator.free(table)
        else:
            self.holders.append(Holder(token_ids, table + new, len(table), prefix))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def grow(self, data):
        holder = self.pick_holder(data)
        size = self.model.block_size
        token_ids = data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
        new = self.allocate(1)
        if new is not None:
            holder.table += new
            holder.token_ids += token_ids

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def cache_next_block(self, data):
        holder = self.pick_holder(data)
        if holder.num_cached == len(holder.table):
            return
        size = self.model.block_size
        block = holder.table[holder.num_cached]
        token_ids = holder.token_ids[holder.num_cached * size :][:size]
        parent = holder.prefix
        holder.prefix = self.model.cache(parent, block, token_ids)
        holder.num_cached += 1
        chain_id = self.allocator.cache_block(self.chain_ids[parent], block, token_ids)
        if holder.prefix not in self.chain_ids:
            assert chain_id not in self.chain_ids.values()
            self.chain_ids[holder.prefix] = chain_id
        assert chain_id == self.chain_ids[holder.prefix]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data):
        """Another sequence continues from the same blocks."""
        holder = self.pick_holder(data)
        self.model.acquire(holder.table)
        self.allocator.acquire(holder.table)
        self.holders.append(
            Holder(list(holder.token_ids), list(holder.table), holder.num_cached, holder.prefix)
        )

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data):
        holder = self.pick_holder(data)
        self.holders.remove(holder)
        self.model.release(holder.table)
        self.allocator.free(holder.table)

    @precondition(lambda self: any(holder.num_cached for holder in self.holders))
    @rule(data=st.data())
    def let_go_of_the_oldest_blocks(self, data):
        """As a sliding window does: a parent may now be evicted while its child is held."""
        holder = data.draw(st.sampled_from([h for h in self.holders if h.num_cached]))
        n = data.draw(st.integers(1, holder.num_cached))
        self.model.release(holder.table[:n])
        self.allocator.free(holder.table[:n])
        del holder.table[:n], holder.token_ids[: n * self.model.block_size]
        holder.num_cached -= n

    @rule(data=st.data())
    def evict(self, data):
        """Blocks are taken and given back, often all that are free."""
        num_free = len(self.model.free)
        table = self.allocate(data.draw(st.one_of(st.just(num_free), st.integers(0, num_free))))
        self.model.release(table)
        self.allocator.free(table)

    @rule(
        token_ids=st.lists(st.integers(0, 1), max_size=12),
        root=st.sampled_from([ROOT, OTHER_ROOT]),
    )
    def look_up(self, token_ids, root):
        self.check_match(token_ids, root)

    @precondition(lambda self: self.model.free)
    @rule(data=st.data())
    def free_a_free_block(self, data):
        """In the midst of blocks that are held: nothing of the call may stay."""
        block = data.draw(st.sampled_from(self.model.free))
        held = [held for holder in self.holders for held in holder.table]
        cut = data.draw(st.integers(0, len(held)))
        with pytest.raises(ValueError, match=f"^block {block} is free already$"):
            self.allocator.free([*held[:cut], block, *held[cut:]])

    @precondition(lambda self: any(self.model.ref_counts))
    @rule(data=st.data())
    def free_more_than_is_held(self, data):
        counts = self.model.ref_counts
        block = data.draw(st.sampled_from([i for i, count in enumerate(counts) if count]))
        with pytest.raises(ValueError, match=f"^block {block} is listed more often than it is"):
            self.allocator.free([block] * (counts[block] + 1))

    @rule()
    def clear_cache(self):
        self.model.clear_cache()
        self.allocator.clear_cache()

    @invariant()
    def agree(self):
        self.allocator.check_invariants()
        blocks = range(self.allocator.num_blocks)
        assert [self.allocator.ref_count(block) for block in blocks] == self.model.ref_counts
        assert self.allocator.num_free_blocks == len(self.model.free)
        assert self.allocator.num_cached_blocks == len(self.model.cached)
        cached = set(self.model.cached.values())
        assert [self.allocator.is_cached(block) for block in blocks] == [
            block in cached for block in blocks
        ]

    def teardown(self):
        """When all sequences have gone, every block comes out, in the model's order."""
        for holder in self.holders:
            self.model.release(holder.table)
            self.allocator.free(holder.table)
        self.agree()
        self.allocate(self.allocator.num_blocks)
        self.agree()


TestAllocatorAgainstItsModel = AllocatorMachine.TestCase
TestAllocatorAgainstItsModel.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,  # a busy machine is no failure
    suppress_health_check=[HealthCheck.too_slow],
)
