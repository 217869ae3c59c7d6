"""Weights of linear layers in the order in which the operators read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from pyengine import ops
from pyengine.weights.ggml_types import GGMLType
from pyengine.weights.quantized import QuantizedTensor


@dataclass(frozen=True)
class DenseWeight:
    """W [num_outputs, num_inputs] in the dtype of the activations."""

    packed: Tensor
    num_outputs: int
    num_inputs: int
    exact: bool  # or else multiply as PyTorch does

    @property
    def ggml_type(self) -> int:
        """As ops.decoder_add_projection takes it."""
        return ops.NOT_QUANTIZED

    @classmethod
    def pack(cls, weight: Tensor, *, exact: bool = True) -> DenseWeight:
        num_outputs, num_inputs = weight.shape
        return cls(ops.pack_linear_weight(weight), num_outputs, num_inputs, exact)

    def multiply(self, x: Tensor, bias: Tensor | None, *, float32_out: bool) -> Tensor:
        """x W^T + b: [T, num_inputs] -> [T, num_outputs], in x's dtype or float32."""
        if not self.exact:
            # On a GPU, where weights lie packed as they are.
            weight = self.packed.view(self.num_outputs, self.num_inputs)
            product = torch.nn.functional.linear(x, weight, bias)
            return product.float() if float32_out else product
        return ops.linear(x, self.packed, bias, self.num_outputs, float32_out=float32_out)

    def embed(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows token_ids (int64 [T]) of W, which is of this dtype -> [T, num_inputs]."""
        return ops.packed_embedding(token_ids, self.packed, self.num_outputs, self.num_inputs)


@dataclass(frozen=True)
class QuantizedWeight:
    """W [num_outputs, num_inputs] in the integers of a ggml type, with which it is multiplied."""

    packed: Tensor
    type: GGMLType
    num_outputs: int
    num_inputs: int

    @property
    def ggml_type(self) -> int:
        return self.type.id

    @classmethod
    def pack(cls, weight: QuantizedTensor) -> QuantizedWeight:
        packed = ops.pack_quantized_weight(weight.data, weight.type.id)
        return cls(packed, weight.type, *weight.shape)

    def multiply(self, x: Tensor, bias: Tensor | None, *, float32_out: bool) -> Tensor:
        """x W^T + b: [T, num_inputs] -> [T, num_outputs], in x's dtype or float32."""
        return ops.quantized_linear(
            x, self.packed, self.type.id, bias, self.num_outputs, float32_out=float32_out
        )

    def embed(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows token_ids (int64 [T]) of W -> [T, num_inputs]."""
        return ops.quantized_embedding(
            token_ids, self.packed, self.type.id, self.num_outputs, self.num_inputs, dtype
        )


PackedWeight = DenseWeight | QuantizedWeight


def pack_weight(weight: Tensor | QuantizedTensor, *, exact: bool = True) -> PackedWeight:
    if isinstance(weight, QuantizedTensor):
        return QuantizedWeight.pack(weight)
    return DenseWeight.pack(weight, exact=exact)


def pack_weights(
    weights: Sequence[Tensor | QuantizedTensor], *, exact: bool = True
) -> list[PackedWeight]:
    """Weights whose outputs lie side by side, packed. Neighbours of one type become one."""

    def type_of(weight: Tensor | QuantizedTensor) -> GGMLType | None:
        return weight.type if isinstance(weight, QuantizedTensor) else None

    packed: list[PackedWeight] = []
    for type_, group in groupby(weights, type_of):
        rows = torch.cat([w.data if isinstance(w, QuantizedTensor) else w for w in group])
        packed.append(pack_weight(QuantizedTensor(rows, type_) if type_ else rows, exact=exact))
    return packed
