import pytest
import torch


@pytest.fixture
def with_num_threads():
    """Sets the number of threads of the ops; the test's end restores it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
