"""The block allocator's slow twin: plain lists, and whole prefixes in place of hashes and chain
ids. It says for every call which blocks must come out."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prefix:
    """All the tokens from a root to the end of a block, and when it was cached: forgotten and
    cached anew, it is another one."""

    token_ids: tuple[int, ...]
    serial: int
    root: int  # which of the roots


ROOT, OTHER_ROOT = Prefix((), 0, 0), Prefix((), 0, 1)


class AllocatorModel:
    """Takes and returns what BlockAllocator does, with a Prefix for a chain id.

    Attributes:
        ref_counts: per block.
        free: the free blocks in the order in which they are handed out.
        cached: the block of each prefix that can be found, oldest first.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.ref_counts = [0] * num_blocks
        self.free = list(range(num_blocks))
        self.cached: dict[Prefix, int] = {}
        self._num_prefixes = 0

    def allocate(self, n: int) -> list[int] | None:
        """None when fewer than n are free."""
        if n > len(self.free):
            return None
        table = []
        for _ in range(n):
            prefix = self.prefix_of(self.free[0])
            if prefix is not None:
                gone = self._forget(prefix)
                self.free = [block for block in gone if self.ref_counts[block] == 0] + [
                    block for block in self.free if block not in gone
                ]
            table.append(self.free.pop(0))
            self.ref_counts[table[-1]] = 1
        return table

    def match(self, token_ids: list[int], root: Prefix) -> tuple[list[int], Prefix]:
        table, found = [], root
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            longer = self.find(tuple(token_ids[:end]), root.root)
            if longer is None:
                break
            table.append(self.cached[longer])
            found = longer
        return table, found

    def acquire(self, table: list[int]) -> None:
        for block in table:
            self.ref_counts[block] += 1
        self.free = [block for block in self.free if block not in table]

    def cache(self, parent: Prefix, block: int, token_ids: list[int]) -> Prefix:
        if parent.token_ids and parent not in self.cached:
            return parent
        whole = parent.token_ids + tuple(token_ids)
        found = self.find(whole, parent.root)
        if found is None:
            self._num_prefixes += 1
            found = Prefix(whole, self._num_prefixes, parent.root)
            self.cached[found] = block
        return found

    def release(self, table: list[int]) -> None:
        for block in reversed(table):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free.insert(len(self.free) if self.prefix_of(block) else 0, block)

    def clear_cache(self) -> None:
        self.cached.clear()

    def find(self, token_ids: tuple[int, ...], root: int) -> Prefix | None:
        return next(
            (p for p in self.cached if (p.token_ids, p.root) == (token_ids, root)),
            None,
        )

    def prefix_of(self, block: int) -> Prefix | None:
        return next((prefix for prefix, cached in self.cached.items() if cached == block), None)

    def _forget(self, prefix: Prefix) -> list[int]:
        """The blocks of a prefix and of all longer ones, parents first, then oldest first."""
        gone = [self.cached.pop(prefix)]
        end = len(prefix.token_ids)
        for longer in list(self.cached):
            if len(longer.token_ids) == end + self.block_size and (
                (longer.token_ids[:end], longer.root) == (prefix.token_ids, prefix.root)
            ):
                gone += self._forget(longer)
        return gone
