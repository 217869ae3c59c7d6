"""What an engine says and refuses when it starts."""

import psutil
import pytest
import torch

from pyengine import ops
from pyengine.config import MAX_NUM_THREADS, EngineConfig
from tests.engine.harness import Harness

TOTAL_BYTES = psutil.virtual_memory().total


def test_it_tells_in_one_line_what_was_chosen():
    # A block: 2 (K and V) * 2 layers * 2 heads * 16 values * 4 bytes, for each of 4 tokens.
    assert Harness(num_kv_blocks=2**16).engine.describe() == (
        "tiny: float32, sequences of up to 2048 tokens, "
        "float32 KV cache of 65536 blocks of 4 tokens (128 MiB), "
        f"{ops.isa_name()} kernels on {torch.get_num_threads()} threads"
    )


def test_a_small_pool_shows_in_the_length_that_it_tells():
    assert "sequences of up to 32 tokens" in Harness(num_kv_blocks=8).engine.describe()


@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_blocks": TOTAL_BYTES},
        {"num_kv_blocks": None, "kv_cache_bytes": 2 * TOTAL_BYTES, "max_num_seqs": TOTAL_BYTES},
    ],
)
def test_a_cache_larger_than_the_machine_is_refused(options):
    with pytest.raises(ValueError, match=r"would take .* GiB .* lower num_kv_blocks or kv_cache"):
        Harness(**options)


def test_a_cache_that_is_given_more_than_it_can_use_takes_what_it_can_use():
    options = {"num_kv_blocks": None, "kv_cache_bytes": 2 * TOTAL_BYTES, "max_num_seqs": 2}
    assert Harness(**options).engine.num_kv_blocks == 2 * 2048 // 4


def test_more_threads_than_a_process_can_start_are_refused():
    EngineConfig(model="m", num_threads=MAX_NUM_THREADS)
    with pytest.raises(ValueError, match="num_threads must be at most 1024, got 1025"):
        EngineConfig(model="m", num_threads=MAX_NUM_THREADS + 1)
