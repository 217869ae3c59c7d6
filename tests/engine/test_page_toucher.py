import mmap
from pathlib import Path

import numpy as np
import pytest

from pyengine.engine.page_toucher import PageToucher

MIB = 1 << 20


class Mapping:
    """8 MiB that nobody has written, and what the system has provided of it."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.bytes = np.frombuffer(self.memory, dtype=np.uint8)
        self.address = self.bytes.ctypes.data

    @property
    def resident_bytes(self) -> int:
        with Path("/proc/self/pagemap").open("rb") as pages:
            pages.seek(self.address // mmap.PAGESIZE * 8)
            entries = np.frombuffer(
                pages.read(len(self.bytes) // mmap.PAGESIZE * 8), dtype=np.uint64
            )
        return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE

    def touch_all(self, toucher: PageToucher, used_bytes: int) -> None:
        for _ in range(100):
            if not toucher.touch(used_bytes):
                return
        raise AssertionError("it never ends")


@pytest.fixture
def mapping():
    return Mapping()


def test_so_much_is_ready_beyond_what_is_in_use(mapping):
    toucher = PageToucher(mapping.address, 8 * MIB, 4 * MIB)
    mapping.touch_all(toucher, 0)
    assert 4 * MIB <= mapping.resident_bytes < 8 * MIB
    mapping.touch_all(toucher, 3 * MIB)
    assert mapping.resident_bytes == 8 * MIB


def test_what_was_written_stays(mapping):
    mapping.bytes[5] = 7
    mapping.touch_all(PageToucher(mapping.address, 8 * MIB, 8 * MIB), 0)
    assert mapping.bytes[5] == 7
    assert mapping.resident_bytes == 8 * MIB


def test_a_use_that_has_run_ahead_is_not_touched_again(mapping):
    toucher = PageToucher(mapping.address, 8 * MIB, 2 * MIB)
    mapping.touch_all(toucher, 6 * MIB)
    assert mapping.resident_bytes <= 4 * MIB


def test_a_call_does_a_little_at_a_time(mapping):
    assert PageToucher(mapping.address, 8 * MIB, 8 * MIB).touch(0)
    assert 0 < mapping.resident_bytes <= 4 * MIB
