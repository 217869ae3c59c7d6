"""A container's limit counts, where there is one."""

import psutil
import pytest

from pyengine.engine.memory import (
    available_memory_bytes,
    return_free_memory,
    total_memory_bytes,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("limit_file", "usage_file"),
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_a_container_gets_what_its_group_is_allowed(tmp_path, limit_file, usage_file):
    (tmp_path / limit_file).parent.mkdir(exist_ok=True)
    (tmp_path / limit_file).write_text(f"{GIB}\n")
    (tmp_path / usage_file).write_text(f"{GIB // 4}\n")
    assert total_memory_bytes(tmp_path) == GIB
    assert available_memory_bytes(tmp_path) <= GIB - GIB // 4
    (tmp_path / usage_file).write_text(f"{2 * GIB}\n")
    assert available_memory_bytes(tmp_path) == 0


@pytest.mark.parametrize("limit", [None, "max\n", str(2**63 - 4096)])
def test_without_a_limit_the_machine_counts(tmp_path, limit):
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("0\n")
    assert total_memory_bytes(tmp_path) == psutil.virtual_memory().total
    assert available_memory_bytes(tmp_path) > 0


def test_freed_memory_goes_back_to_the_system():
    """The last piece is kept, so that the others don't lie at the end of the heap, which is given
    back anyway."""
    pieces = [b"x" * 60_000 for _ in range(1000)]
    process = psutil.Process()
    used = process.memory_info().rss
    last = pieces.pop()
    pieces.clear()
    return_free_memory()
    assert process.memory_info().rss < used - 30e6
    assert len(last) == 60_000
