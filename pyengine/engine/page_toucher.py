"""Gets memory of the KV cache from the system before it is needed."""

import ctypes

# Linux 5.14 and later: provides pages as if they had been written, and changes no content.
_MADV_POPULATE_WRITE = 23

_PIECE_BYTES = 2 << 20  # a huge page, which takes the system up to some milliseconds


class PageToucher:
    """Has the system provide a mapping's pages piece by piece, while there is nothing else to do.

    Otherwise a page is provided when it is first written: that happens in the middle of a step, to
    all threads in turn, and can take a tenth of the time of a burst of requests.

    Args:
        address: where the mapping begins.
        num_bytes: its size.
        ahead_bytes: how much to keep ready beyond what is in use.
    """

    def __init__(self, address: int, num_bytes: int, ahead_bytes: int) -> None:
        self._address = address
        self._num_bytes = num_bytes
        self._ahead_bytes = ahead_bytes
        self._ready_bytes = 0  # from the beginning
        self._madvise = getattr(ctypes.CDLL(None), "madvise", None)
        if self._madvise is not None:
            self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def touch(self, used_bytes: int) -> bool:
        """Provides the next piece, unless enough is ready beyond the first `used_bytes`.

        Returns:
            False if there is nothing to do, or the system can't be asked for it.
        """
        begin = max(self._ready_bytes, used_bytes // _PIECE_BYTES * _PIECE_BYTES)
        end = min(begin + _PIECE_BYTES, self._num_bytes)
        if self._madvise is None or begin >= min(used_bytes + self._ahead_bytes, self._num_bytes):
            return False
        self._ready_bytes = end
        return self._madvise(self._address + begin, end - begin, _MADV_POPULATE_WRITE) == 0
