"""How much memory the process may use: the machine's, or less in a container."""

import ctypes
from pathlib import Path

import psutil

# A container sees the limits of its own group at the root of the hierarchy.
_CGROUP = Path("/sys/fs/cgroup")
# Limit and usage in bytes, under cgroup v2 and v1.
_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def total_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """All that the process could ever get."""
    machine: int = psutil.virtual_memory().total
    limit = _limit_and_usage(cgroup)
    return machine if limit is None else min(machine, limit[0])


def available_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """What is free now, caches that the system would give up included."""
    machine: int = psutil.virtual_memory().available
    limit = _limit_and_usage(cgroup)
    return machine if limit is None else min(machine, max(0, limit[0] - limit[1]))


def return_free_memory() -> None:
    """Gives back to the system what the C library keeps of the memory that was freed, where it can
    be told to (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _limit_and_usage(cgroup: Path) -> tuple[int, int] | None:
    for limit, usage in _FILES:
        try:
            return int((cgroup / limit).read_text()), int((cgroup / usage).read_text())
        except (OSError, ValueError):  # no such group, or its limit is the word "max"
            continue
    return None
