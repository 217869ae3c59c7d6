"""Each op in plain PyTorch, slow and obvious: the meaning that the kernels are tested against.

Everything is computed in the dtype `math` (float64 unless said), from the inputs as they are.
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, math: torch.dtype = torch.float64) -> Tensor:
    x, weight = x.to(math), weight.to(math)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, positions: Tensor, cos_sin: Tensor, math=torch.float64) -> Tensor:
    """The half-split rotation of the first cos_sin.shape[1] elements of x [T, heads, D]."""
    rotary_dim = cos_sin.shape[1]
    cos, sin = cos_sin[positions].to(math)[:, None].chunk(2, dim=-1)
    x = x.to(math)
    first, second = x[..., :rotary_dim].chunk(2, dim=-1)
    rest = x[..., rotary_dim:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def write_slots(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> None:
    """Writes rows [T, K, D] to the slots of cache [B, K, P, D]; slot -1 is left out."""
    for row, slot in zip(rows, slot_mapping.tolist(), strict=True):
        if slot >= 0:
            cache[slot // cache.shape[2], :, slot % cache.shape[2]] = row


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    math: torch.dtype = torch.float64,
) -> Tensor:
    group = query.shape[1] // key_cache.shape[1]
    block_size = key_cache.shape[2]
    out = torch.empty(query.shape, dtype=math)
    starts = query_start_loc.tolist()
    for s, seq_len in enumerate(seq_lens.tolist()):
        blocks = block_tables[s, : -(-seq_len // block_size)].long()
        for i in range(starts[s], starts[s + 1]):
            end = seq_len - (starts[s + 1] - i) + 1
            begin = max(0, end - sliding_window) if sliding_window else 0
            # [blocks, K, P, D] -> [K, end - begin, D], a copy per query head
            seen = [
                cache[blocks]
                .transpose(0, 1)
                .flatten(1, 2)[:, begin:end]
                .repeat_interleave(group, 0)
                for cache in (key_cache, value_cache)
            ]
            keys, values = (x.to(math) for x in seen)
            scores = torch.einsum("hd,hkd->hk", query[i].to(math), keys) * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            out[i] = torch.einsum("hk,hkd->hd", scores.softmax(-1), values)
    return out
