"""The unknown fields of requests, on a server that ignores them."""

import logging

logger = logging.getLogger(__name__)

# Clients choose the names: neither the log nor the memory is theirs to fill.
MAX_LOGGED_FIELDS = 100
MAX_LOGGED_CHARS = 100


class IgnoredFields:
    """The unknown fields that a lenient server has met. Any thread may use it."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def ignore(self, name: str) -> None:
        """Logs the field, the first time."""
        name = name[:MAX_LOGGED_CHARS]
        if name not in self._names and len(self._names) < MAX_LOGGED_FIELDS:
            self._names.add(name)
            logger.warning("ignoring the unknown field %r, here and in later requests", name)
