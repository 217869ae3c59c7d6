"""The block allocator, with exact block ids: who gets which block, what is found again, and what
is refused. Block size 4 throughout, so tokens are written in fours."""

import numpy as np
import pytest

from pyengine._core import OTHER_ROOTS, ROOT_CHAIN_ID, BlockAllocator, NoFreeBlocksError

A = [1, 2, 3, 4]
B = [5, 6, 7, 8]
C = [9, 10, 11, 12]


@pytest.fixture(params=[2**64 - 1, 0], ids=["good_hash", "every_hash_collides"])
def allocator(request):
    """Eight blocks of four tokens. Whatever a test does, the state it leaves is consistent."""
    allocator = BlockAllocator(num_blocks=8, block_size=4, hash_mask=request.param)
    yield allocator
    allocator.check_invariants()


def cache_chain(allocator, block_ids, *contents):
    """Caches the contents, one a block, as one prefix; returns the chain id of each block."""
    chain_ids = []
    parent = ROOT_CHAIN_ID
    for block_id, token_ids in zip(block_ids, contents, strict=True):
        parent = allocator.cache_block(parent, block_id, token_ids)
        chain_ids.append(parent)
    return chain_ids


def freed_prefix(allocator, *contents):
    """Blocks that hold the contents as one prefix, cached and free."""
    block_ids = allocator.allocate(len(contents))
    cache_chain(allocator, block_ids, *contents)
    allocator.free(block_ids)
    return block_ids


# Taking and giving back


def test_a_new_allocator_hands_out_blocks_in_ascending_order(allocator):
    assert (allocator.num_blocks, allocator.block_size) == (8, 4)
    assert allocator.allocate(3) == [0, 1, 2]
    assert allocator.allocate(0) == []
    assert allocator.allocate(5) == [3, 4, 5, 6, 7]
    assert allocator.num_free_blocks == 0


def test_a_freed_table_comes_back_as_it_was(allocator):
    table = allocator.allocate(3)
    allocator.free(table)
    assert allocator.num_free_blocks == 8
    assert allocator.allocate(4) == [0, 1, 2, 3]


def test_the_last_freed_uncached_block_is_handed_out_first(allocator):
    allocator.allocate(8)
    allocator.free([5])
    allocator.free([2])
    assert allocator.allocate(2) == [2, 5]


def test_more_blocks_than_are_free_are_refused_and_nothing_changes(allocator):
    allocator.allocate(6)
    with pytest.raises(
        NoFreeBlocksError,
        match=r"^n must be at most the number of free blocks \(2 of 8\), got 3$",
    ):
        allocator.allocate(3)
    assert allocator.num_free_blocks == 2
    assert allocator.allocate(2) == [6, 7]


def test_running_out_of_blocks_is_a_runtime_error_of_its_own():
    assert issubclass(NoFreeBlocksError, RuntimeError)


def test_a_shared_block_is_free_when_its_last_holder_lets_go(allocator):
    (block,) = allocator.allocate(1)
    allocator.acquire([block, block])
    assert allocator.ref_count(block) == 3
    allocator.free([block, block])
    assert (allocator.ref_count(block), allocator.num_free_blocks) == (1, 7)
    allocator.free([block])
    assert (allocator.ref_count(block), allocator.num_free_blocks) == (0, 8)


# Finding a prefix again


def test_nothing_matches_in_an_empty_cache(allocator):
    match = allocator.match_prefix(A + B)
    assert (match.block_ids, match.num_free, match.chain_id) == ([], 0, ROOT_CHAIN_ID)


def test_the_longest_chain_of_full_blocks_matches(allocator):
    table = allocator.allocate(3)
    chain_ids = cache_chain(allocator, table, A, B, C)
    assert len({ROOT_CHAIN_ID, *chain_ids}) == 4

    def found(token_ids):
        match = allocator.match_prefix(token_ids)
        return match.block_ids, match.chain_id

    assert found(A + B + C) == ([0, 1, 2], chain_ids[2])
    assert found([*A, *B, 9, 10, 11]) == ([0, 1], chain_ids[1])
    assert found(A + C) == ([0], chain_ids[0])
    assert found(A[:3]) == ([], ROOT_CHAIN_ID)
    assert found(B) == ([], ROOT_CHAIN_ID)
    assert found([]) == ([], ROOT_CHAIN_ID)


def test_equal_blocks_after_different_prefixes_are_different(allocator):
    table = allocator.allocate(4)
    cache_chain(allocator, table[:2], A, C)
    cache_chain(allocator, table[2:], B, C)
    assert allocator.match_prefix(A + C).block_ids == [0, 1]
    assert allocator.match_prefix(B + C).block_ids == [2, 3]
    assert allocator.match_prefix(C).block_ids == []


def test_a_match_says_how_many_of_its_blocks_are_free(allocator):
    table = allocator.allocate(3)
    cache_chain(allocator, table, A, B, C)
    assert allocator.match_prefix(A + B + C).num_free == 0
    allocator.acquire(table[:1])
    allocator.free(table)
    assert allocator.match_prefix(A + B + C).num_free == 2


def test_a_free_cached_block_counts_as_free_and_is_revived_by_acquiring_it(allocator):
    table = freed_prefix(allocator, A, B)
    assert (allocator.num_free_blocks, allocator.num_cached_blocks) == (8, 2)
    allocator.acquire(table)
    assert (allocator.num_free_blocks, allocator.num_cached_blocks) == (6, 2)
    assert [allocator.ref_count(block) for block in table] == [1, 1]
    assert allocator.allocate(6) == [2, 3, 4, 5, 6, 7]
    assert allocator.match_prefix(A + B).block_ids == table


def test_content_that_is_cached_already_stays_private_and_continues_the_known_chain(allocator):
    first, twin, after = allocator.allocate(3)
    chain_id = allocator.cache_block(ROOT_CHAIN_ID, first, A)
    assert allocator.cache_block(ROOT_CHAIN_ID, twin, A) == chain_id
    assert not allocator.is_cached(twin)
    allocator.cache_block(chain_id, after, B)
    assert allocator.match_prefix(A + B).block_ids == [first, after]


def test_caching_a_block_again_changes_nothing(allocator):
    (block,) = allocator.allocate(1)
    chain_id = allocator.cache_block(ROOT_CHAIN_ID, block, A)
    assert allocator.cache_block(ROOT_CHAIN_ID, block, A) == chain_id
    assert allocator.num_cached_blocks == 1


# Eviction


def test_uncached_blocks_are_handed_out_before_cached_ones(allocator):
    freed_prefix(allocator, A, B)
    assert allocator.allocate(6) == [2, 3, 4, 5, 6, 7]
    assert allocator.num_cached_blocks == 2


def test_the_least_recently_used_block_is_evicted_first_and_a_child_before_its_parent(allocator):
    a_and_b = freed_prefix(allocator, A, B)
    (c,) = freed_prefix(allocator, C)
    allocator.allocate(5)
    assert (a_and_b, c) == ([0, 1], 2)
    assert allocator.allocate(1) == [1]
    assert allocator.match_prefix(A + B).block_ids == [0]
    assert allocator.allocate(2) == [0, 2]
    assert allocator.num_cached_blocks == 0


def test_using_a_prefix_again_makes_it_the_last_to_be_evicted(allocator):
    old = freed_prefix(allocator, A, B)
    (new,) = freed_prefix(allocator, C)
    allocator.acquire(old)
    allocator.free(old)
    allocator.allocate(5)
    assert allocator.allocate(3) == [new, 1, 0]


def test_looking_a_prefix_up_does_not_change_the_order_of_eviction(allocator):
    (old,) = freed_prefix(allocator, A)
    (new,) = freed_prefix(allocator, B)
    allocator.match_prefix(A)
    allocator.allocate(6)
    assert allocator.allocate(2) == [old, new]


def test_a_held_cached_block_is_never_evicted(allocator):
    (held,) = allocator.allocate(1)
    allocator.cache_block(ROOT_CHAIN_ID, held, A)
    allocator.allocate(7)
    with pytest.raises(NoFreeBlocksError):
        allocator.allocate(1)
    assert allocator.match_prefix(A).block_ids == [held]


def twin_with_a_child(allocator):
    """Blocks 0 and 1 hold A; 0 is cached. Block 2 holds B and is cached under A, on behalf of the
    holder of 1. So nobody need hold 0 while 2 is held."""
    cached, twin, child = allocator.allocate(3)
    chain_id = allocator.cache_block(ROOT_CHAIN_ID, cached, A)
    allocator.cache_block(ROOT_CHAIN_ID, twin, A)
    allocator.cache_block(chain_id, child, B)
    return chain_id


def test_an_evicted_block_takes_the_free_blocks_below_it_along(allocator):
    """No look-up could reach them any more, so they are handed out next, before those that one
    can reach."""
    twin_with_a_child(allocator)
    (other,) = allocator.allocate(1)
    allocator.cache_block(ROOT_CHAIN_ID, other, C)
    allocator.free([0])
    allocator.free([other])
    allocator.free([1, 2])
    assert allocator.allocate(5) == [1, 4, 5, 6, 7]
    assert allocator.allocate(1) == [0]
    assert not allocator.is_cached(2)
    assert allocator.allocate(2) == [2, other]


def test_a_held_block_below_an_evicted_one_stays_held_but_uncached(allocator):
    twin_with_a_child(allocator)
    allocator.free([0])
    assert allocator.allocate(6) == [3, 4, 5, 6, 7, 0]
    assert (allocator.ref_count(2), allocator.is_cached(2)) == (1, False)
    allocator.free([2])
    assert allocator.allocate(1) == [2]


def test_nothing_is_cached_under_a_forgotten_prefix(allocator):
    chain_id = twin_with_a_child(allocator)
    allocator.free([0])
    allocator.allocate(6)
    assert allocator.cache_block(chain_id, 2, B) == chain_id
    assert allocator.num_cached_blocks == 0


def test_a_sharer_that_comes_late_with_a_forgotten_prefix_is_not_refused(allocator):
    """Two sequences share blocks; the cache is cleared, and one of them, which had offered nothing
    yet, caches both blocks. The other one's parent is forgotten, which once raised "cached
    already, with other content"."""
    table = allocator.allocate(2)
    allocator.acquire(table)
    old = allocator.cache_block(ROOT_CHAIN_ID, table[0], A)
    allocator.clear_cache()
    cache_chain(allocator, table, A, B)
    assert allocator.cache_block(old, table[1], B) == old
    assert allocator.match_prefix(A + B).block_ids == table


def test_a_forgotten_prefix_that_is_cached_anew_has_a_new_chain_id(allocator):
    """Else a block cached under the old id could be found after a different prefix."""
    (block,) = allocator.allocate(1)
    old = allocator.cache_block(ROOT_CHAIN_ID, block, A)
    allocator.clear_cache()
    new = allocator.cache_block(ROOT_CHAIN_ID, block, A)
    assert new not in (ROOT_CHAIN_ID, old)


def test_a_long_chain_is_forgotten_at_once():
    """A chain as long as a context of a million tokens; recursion would overflow the stack."""
    allocator = BlockAllocator(num_blocks=65_537, block_size=1)
    cached, *chain = allocator.allocate(65_537)
    parent = allocator.cache_block(ROOT_CHAIN_ID, cached, [0])
    for block_id in chain:
        parent = allocator.cache_block(parent, block_id, [0])
    allocator.free([cached])
    assert allocator.allocate(1) == [cached]
    assert allocator.num_cached_blocks == 0
    allocator.check_invariants()


def test_clearing_the_cache_forgets_prefixes_and_keeps_holders(allocator):
    freed = freed_prefix(allocator, A, B)
    held = allocator.allocate(1)
    parent = allocator.cache_block(ROOT_CHAIN_ID, held[0], C)
    allocator.clear_cache()
    assert (allocator.num_cached_blocks, allocator.num_free_blocks) == (0, 7)
    assert allocator.match_prefix(A + B).block_ids == []
    assert allocator.match_prefix(C).block_ids == []
    assert allocator.ref_count(held[0]) == 1
    assert allocator.cache_block(parent, held[0], A) == parent
    assert sorted(allocator.allocate(7)) == sorted([*freed, 3, 4, 5, 6, 7])


# What is refused, in which words; and nothing changes


def test_a_double_free_is_refused(allocator):
    table = allocator.allocate(2)
    allocator.free(table)
    with pytest.raises(ValueError, match=r"^block 0 is free already$"):
        allocator.free(table)
    assert allocator.num_free_blocks == 8


def test_a_table_with_one_bad_block_is_not_freed_at_all(allocator):
    allocator.allocate(2)
    with pytest.raises(ValueError, match=r"^block 5 is free already$"):
        allocator.free([0, 1, 5])
    assert [allocator.ref_count(block) for block in range(8)] == [1, 1, 0, 0, 0, 0, 0, 0]


def test_a_block_listed_more_often_than_it_is_held_is_refused(allocator):
    allocator.allocate(2)
    allocator.acquire([1])
    with pytest.raises(ValueError, match=r"^block 1 is listed more often than it is held \(2\)$"):
        allocator.free([0, 1, 1, 1])
    assert [allocator.ref_count(0), allocator.ref_count(1)] == [1, 2]


@pytest.mark.parametrize("block_id", [-1, 8, 2**40])
@pytest.mark.parametrize(
    "call",
    [
        lambda allocator, block_id: allocator.free([0, block_id]),
        lambda allocator, block_id: allocator.acquire([0, block_id]),
        lambda allocator, block_id: allocator.cache_block(ROOT_CHAIN_ID, block_id, A),
        lambda allocator, block_id: allocator.ref_count(block_id),
        lambda allocator, block_id: allocator.is_cached(block_id),
    ],
    ids=["free", "acquire", "cache_block", "ref_count", "is_cached"],
)
def test_a_block_that_does_not_exist_is_refused(allocator, call, block_id):
    allocator.allocate(1)
    with pytest.raises(ValueError, match=rf"^block {block_id} does not exist: ids are 0 to 7$"):
        call(allocator, block_id)
    assert (allocator.ref_count(0), allocator.num_free_blocks) == (1, 7)


def test_a_free_uncached_block_cannot_be_acquired(allocator):
    allocator.allocate(1)
    with pytest.raises(
        ValueError,
        match=r"^block 3 is free and not cached: there is nothing in it to acquire$",
    ):
        allocator.acquire([0, 3])
    assert allocator.ref_count(0) == 1


def test_a_free_block_cannot_be_cached(allocator):
    with pytest.raises(ValueError, match=r"^block 0 is free: only a held block can be cached$"):
        allocator.cache_block(ROOT_CHAIN_ID, 0, A)


def test_a_cached_block_cannot_be_cached_with_other_content(allocator):
    allocator.allocate(2)
    cache_chain(allocator, [0, 1], A, B)
    for parent, token_ids in [(ROOT_CHAIN_ID, C), (ROOT_CHAIN_ID, A), (ROOT_CHAIN_ID, B)]:
        with pytest.raises(ValueError, match=r"^block 1 is cached already, with other content$"):
            allocator.cache_block(parent, 1, token_ids)
    assert allocator.match_prefix(A + B).block_ids == [0, 1]


@pytest.mark.parametrize("token_ids", [[], A[:3], [*A, 5]], ids=len)
def test_only_full_blocks_can_be_cached(allocator, token_ids):
    allocator.allocate(1)
    with pytest.raises(
        ValueError,
        match=rf"^token_ids must have block_size \(4\) tokens, got {len(token_ids)}$",
    ):
        allocator.cache_block(ROOT_CHAIN_ID, 0, token_ids)


def test_a_parent_chain_id_that_was_never_given_out_is_refused(allocator):
    allocator.allocate(1)
    with pytest.raises(
        ValueError,
        match=r"^parent_chain_id must come from match_prefix or cache_block, got 77$",
    ):
        allocator.cache_block(77, 0, A)


@pytest.mark.parametrize("size", [0, -1, 2**31])
def test_sizes_out_of_range_are_refused(size):
    message = rf"must be between 1 and 2147483647, got {size}$"
    with pytest.raises(ValueError, match="^num_blocks " + message):
        BlockAllocator(num_blocks=size, block_size=4)
    with pytest.raises(ValueError, match="^block_size " + message):
        BlockAllocator(num_blocks=8, block_size=size)


def test_a_negative_number_of_blocks_is_refused(allocator):
    with pytest.raises(ValueError, match=r"^n must be at least 0, got -1$"):
        allocator.allocate(-1)


@pytest.mark.parametrize(
    ("token_ids", "error", "message"),
    [
        ([1, "two"], TypeError, r"^token_ids\[1\] must be an int, got str$"),
        ([1.0], TypeError, r"^token_ids\[0\] must be an int, got float$"),
        ([0, 2**31], ValueError, r"^token_ids\[1\] must be an int of 32 bits, got 2147483648$"),
        ([-(2**70)], ValueError, r"^token_ids\[0\] must be an int of 32 bits, got -1180591620"),
    ],
)
def test_what_is_no_token_id_is_refused_with_its_place(allocator, token_ids, error, message):
    with pytest.raises(error, match=message):
        allocator.match_prefix(token_ids)


def test_token_ids_may_be_any_sequence_of_integers(allocator):
    allocator.allocate(1)
    allocator.cache_block(ROOT_CHAIN_ID, 0, tuple(A))
    assert allocator.match_prefix(np.array(A)).block_ids == [0]


def test_only_a_root_may_be_looked_up_from():
    allocator = BlockAllocator(2, 2)
    [block] = allocator.allocate(1)
    chain_id = allocator.cache_block(ROOT_CHAIN_ID, block, [1, 2])
    for not_a_root in (chain_id, OTHER_ROOTS - 1):
        with pytest.raises(ValueError, match=f"at least OTHER_ROOTS, got {not_a_root}$"):
            allocator.match_prefix([1, 2], not_a_root)


def test_what_is_cached_below_one_root_is_not_found_below_another():
    allocator = BlockAllocator(4, 2, hash_mask=0)
    roots = [ROOT_CHAIN_ID, OTHER_ROOTS, 2**64 - 1]
    table = allocator.allocate(3)
    for root, block in zip(roots, table, strict=True):
        assert allocator.match_prefix([1, 2], root).block_ids == []
        allocator.cache_block(root, block, [1, 2])
    allocator.check_invariants()
    for root, block in zip(roots, table, strict=True):
        assert allocator.match_prefix([1, 2], root).block_ids == [block]
