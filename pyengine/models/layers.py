"""The pieces that model families are made of. Tensors in, tensors out."""

import contextlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyengine import ops
from pyengine.models.config import kv_row_size
from pyengine.models.packed_weights import PackedWeight


@dataclass
class AttentionInputs:
    """Where the T tokens of a step belong: S sequences, one after another in the flat batch."""

    positions: Tensor  # int64 [T]: each token's place in its sequence
    slot_mapping: Tensor  # int64 [T]: where its K/V go, block * block_size + offset
    block_tables: Tensor  # int32 [S, max_blocks]; entries past a sequence's end are unused
    query_start_loc: Tensor  # int32 [S + 1]: offsets of the sequences in the flat batch
    seq_lens: Tensor  # int32 [S]: context lengths after this step


@dataclass
class KVCache:
    """The paged keys and values, each [num_blocks, num_layers, num_kv_heads, block_size,
    kv_row_size], or without the second dimension those of one layer. Blocks may lie apart."""

    keys: Tensor
    values: Tensor

    def layer(self, index: int) -> "KVCache":
        return KVCache(self.keys[:, index], self.values[:, index])


class Linear:
    """y = x W^T + b. A row of y depends on its row of x alone, to the bit.

    Args:
        weights: packed parts of W [N, K], whose outputs lie side by side.
        bias: [N], or None.
    """

    def __init__(self, weights: Sequence[PackedWeight], bias: Tensor | None = None) -> None:
        self.weights = weights
        self.num_inputs = weights[0].num_inputs
        self.bias = bias

    def __call__(self, x: Tensor, *, float32_out: bool = False) -> Tensor:
        """[T, K] -> [T, N], in x's dtype or float32."""
        outputs, first = [], 0
        for weight in self.weights:
            end = first + weight.num_outputs
            bias = None if self.bias is None else self.bias[first:end]
            outputs.append(weight.multiply(x, bias, float32_out=float32_out))
            first = end
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


@dataclass(frozen=True)
class RMSNorm:
    """x / rms(x) * weight (Zhang and Sennrich 2019), for weight [N]."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """residual += x; x = norm(residual): both are overwritten."""
        ops.fused_add_rms_norm_(x, residual, self.weight, self.eps)


@dataclass(frozen=True)
class Attention:
    """Causal attention over the paged cache, with grouped-query heads and rotary embedding."""

    qkv_proj: Linear  # hidden -> [query heads | key heads | value heads]
    o_proj: Linear
    cos_sin: Tensor  # float32 [max_positions, head_size]
    num_heads: int
    num_kv_heads: int
    head_size: int
    sliding_window: int

    @property
    def scale(self) -> float:
        """Of the scores."""
        return self.head_size**-0.5

    def __call__(self, x: Tensor, inputs: AttentionInputs, cache: KVCache) -> Tensor:
        qkv = self.qkv_proj(x).view(
            x.shape[0], self.num_heads + 2 * self.num_kv_heads, self.head_size
        )
        query, key, value = qkv.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], 1)
        ops.rope_and_cache(
            query,
            key,
            value,
            inputs.positions,
            self.cos_sin,
            cache.keys,
            cache.values,
            inputs.slot_mapping,
        )
        attended = ops.paged_attention(
            query,
            cache.keys,
            cache.values,
            inputs.block_tables,
            inputs.query_start_loc,
            inputs.seq_lens,
            scale=self.scale,
            sliding_window=self.sliding_window,
            soft_cap=0.0,
        )
        return self.o_proj(attended.view(x.shape[0], -1))


@dataclass(frozen=True)
class GatedMLP:
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    gate_up_proj: Linear
    down_proj: Linear

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.silu_and_mul(self.gate_up_proj(x)))


@dataclass(frozen=True)
class DecoderLayer:
    """Pre-norm attention and MLP around a residual stream. The norm before the attention belongs
    to what comes before the layer, so that it is one step with the addition to the residual."""

    attention: Attention
    post_attention_layernorm: RMSNorm
    mlp: GatedMLP
    next_layernorm: RMSNorm  # of the next layer's attention, or the model's last

    def __call__(
        self, x: Tensor, residual: Tensor, inputs: AttentionInputs, cache: KVCache
    ) -> Tensor:
        """Both [T, hidden]: x is `residual` normalized, which is overwritten."""
        x = self.attention(x, inputs, cache)
        self.post_attention_layernorm.add(x, residual)
        x = self.mlp(x)
        self.next_layernorm.add(x, residual)
        return x


def new_kv_cache(
    num_layers: int,
    num_blocks: int,
    num_kv_heads: int,
    block_size: int,
    head_size: int,
    cache_dtype: torch.dtype,
) -> KVCache:
    """The cache of all layers. Its memory is touched, and so taken, only as blocks are used.

    All that a block holds lies together, so that the memory in use is one piece, which huge pages
    cover without waste: with small ones, a step on many sequences waits for page tables more than
    for keys and values.
    """
    row_size = kv_row_size(head_size, cache_dtype)
    shape = (num_blocks, num_layers, 2, num_kv_heads, block_size, row_size)
    memory = mmap.mmap(
        -1,
        math.prod(shape) * cache_dtype.itemsize,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
    )
    with contextlib.suppress(AttributeError, OSError):  # there are none
        memory.madvise(mmap.MADV_HUGEPAGE)
    cache = torch.frombuffer(memory, dtype=cache_dtype).view(shape)
    return KVCache(cache[:, :, 0], cache[:, :, 1])
