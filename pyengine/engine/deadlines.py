"""Which requests have run out of time."""

import bisect


class Deadlines:
    """The deadlines of open requests, on the clock of `time.monotonic_ns`. Owned by the engine's
    thread. To ask whether one has passed takes no longer for many requests than for one."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, str]] = []  # (deadline, request id)
        self._by_request: dict[str, int] = {}

    def add(self, request_id: str, deadline_ns: int) -> None:
        bisect.insort(self._sorted, (deadline_ns, request_id))
        self._by_request[request_id] = deadline_ns

    def discard(self, request_id: str) -> None:
        """Forgets the request's deadline, if it has one."""
        deadline_ns = self._by_request.pop(request_id, None)
        if deadline_ns is not None:
            del self._sorted[bisect.bisect_left(self._sorted, (deadline_ns, request_id))]

    def passed(self, now_ns: int) -> list[str]:
        """The requests whose deadline is not after `now_ns`, the earliest first."""
        request_ids = []
        for deadline_ns, request_id in self._sorted:
            if deadline_ns > now_ns:
                break
            request_ids.append(request_id)
        return request_ids
