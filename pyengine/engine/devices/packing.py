"""Several tensors in one piece of memory, so that one copy moves them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; kernels read vectors of so many


@dataclass(frozen=True)
class _Place:
    begin: int
    end: int
    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True)
class PackedTensors:
    """Copies of tensors side by side in `memory`, uint8."""

    memory: Tensor
    places: list[_Place]

    @classmethod
    def pack(cls, tensors: Sequence[Tensor], *, pin_memory: bool) -> "PackedTensors":
        places = []
        end = 0
        for tensor in tensors:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + tensor.numel() * tensor.element_size()
            places.append(_Place(begin, end, tensor.dtype, tensor.shape))
        packed = cls(torch.empty(end, dtype=torch.uint8, pin_memory=pin_memory), places)
        for tensor, copy in zip(tensors, packed.unpack(packed.memory), strict=True):
            copy.copy_(tensor)
        return packed

    def unpack(self, memory: Tensor) -> list[Tensor]:
        """The tensors in `memory`, a copy of this memory on any device."""
        return [memory[p.begin : p.end].view(p.dtype).view(p.shape) for p in self.places]
