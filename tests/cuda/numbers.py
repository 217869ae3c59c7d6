"""What the tests of the CUDA backend say of numbers."""

import torch
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def assert_close(got: Tensor, want: Tensor, dtype: torch.dtype, tolerance: Tensor) -> None:
    """`got` is of this dtype and within `tolerance` of `want`, which is in float64. Numbers too
    small for the dtype's precision may be off by its smallest step."""
    assert got.dtype == dtype
    info = torch.finfo(dtype)
    smallest_step = info.smallest_normal * info.eps
    error = (got.double() - want).abs()
    assert torch.all(error <= tolerance + smallest_step), (error - tolerance).max()
