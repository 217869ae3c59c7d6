"""Calls of code that recurses as deep as its input says."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# llguidance takes 4 KiB or so for each rule that leads to another, and ends the process when it
# runs out. Of this address space only what is used takes memory.
STACK_BYTES = 256 << 20

_stack_size_lock = threading.Lock()  # the setting is the process's


def call_with_deep_stack(function: Callable[[], T]) -> T:
    """What `function` returns or raises, called in a thread with a stack of STACK_BYTES."""
    with ThreadPoolExecutor(1, thread_name_prefix="pyengine-grammar") as executor:
        with _stack_size_lock:
            usual = threading.stack_size(STACK_BYTES)
            future = executor.submit(function)
            threading.stack_size(usual)
        return future.result()
