"""Weights that stay as quantized as their file has them."""

from dataclasses import dataclass

import torch

from pyengine.weights.ggml_types import GGMLType


@dataclass(frozen=True)
class QuantizedTensor:
    """A matrix [N, K] whose rows are ggml blocks, each of `type.block_values` inputs."""

    data: torch.Tensor  # uint8 [N, K / block_values * block_bytes]
    type: GGMLType

    @property
    def shape(self) -> torch.Size:
        num_rows, row_bytes = self.data.shape
        return torch.Size((num_rows, row_bytes // self.type.block_bytes * self.type.block_values))
