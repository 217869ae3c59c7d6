"""Which part of the prefix cache a request may share."""

from collections import OrderedDict

from pyengine._loader import load_core


class CacheSalts:
    """Gives each salt a root of its own in the prefix cache, so that only requests of equal salts
    find each other's blocks. Owned by the engine's thread.

    A salt that was not used for long is forgotten, and with it the way to what it has in the cache:
    it gets a new root when it comes back, never one that another salt had.

    Args:
        max_salts: how many to remember.
    """

    def __init__(self, max_salts: int) -> None:
        self._max_salts = max_salts
        self._roots: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._next_root: int = load_core().OTHER_ROOTS

    def root(self, salt: str | None) -> int:
        """The chain id of the salt's root."""
        if salt is None:
            return load_core().ROOT_CHAIN_ID
        if salt not in self._roots:
            self._roots[salt] = self._next_root
            self._next_root += 1
            if len(self._roots) > self._max_salts:
                self._roots.popitem(last=False)
        self._roots.move_to_end(salt)
        return self._roots[salt]
