"""Each op in plain PyTorch, slow and obvious: the meaning that the kernels are tested against.

Everything is computed in the dtype `math` (float64 unless said), from the inputs as they are.
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, math: torch.dtype = torch.float64) -> Tensor:
    x, weight = x.to(math), weight.to(math)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(
    x: Tensor, positions: Tensor, cos_sin: Tensor, math: torch.dtype = torch.float64
) -> Tensor:
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


def quantize_rows(rows: Tensor) -> Tensor:
    """Rows [..., D] as an int8 cache holds them [..., D + 4]: whole numbers, then the float32 that
    they are times of, in its four bytes."""
    rows = rows.double()
    scales = (rows.abs().amax(-1, keepdim=True) / 127).float()
    codes = (rows / scales.double()).round().nan_to_num().to(torch.int8)
    return torch.cat([codes, scales.flatten().view(torch.int8).view(*rows.shape[:-1], 4)], -1)


def dequantize_rows(cache: Tensor) -> Tensor:
    """What an int8 cache [..., D + 4] stands for, float64 [..., D]. Other caches as they are."""
    if cache.dtype != torch.int8:
        return cache
    codes, scales = cache.split([cache.shape[-1] - 4, 4], -1)
    return codes.double() * scales.contiguous().view(torch.float32).double()


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
    key_cache, value_cache = dequantize_rows(key_cache), dequantize_rows(value_cache)
    group = query.shape[1] // key_cache.shape[1]
    block_size = key_cache.shape[2]
    out = torch.empty(query.shape, dtype=math)
    starts = query_start_loc.tolist()
    for s, end in enumerate(seq_lens.tolist()):
        rows = slice(starts[s], starts[s + 1])
        positions = torch.arange(end - (rows.stop - rows.start), end)[:, None]
        begin = max(0, end - len(positions) - sliding_window + 1) if sliding_window else 0
        blocks = block_tables[s, begin // block_size : -(-end // block_size)].long()
        seen = slice(begin % block_size, begin % block_size + end - begin)
        # [blocks, K, P, D] -> [H, end - begin, D], a copy for each query head
        keys, values = (
            cache[blocks]
            .transpose(0, 1)
            .flatten(1, 2)[:, seen]
            .repeat_interleave(group, 0)
            .to(math)
            for cache in (key_cache, value_cache)
        )
        scores = torch.einsum("qhd,hkd->hqk", query[rows].to(math), keys) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        distance = positions - torch.arange(begin, end)
        hidden = (distance < 0) | (distance >= (sliding_window or end))
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[rows] = torch.einsum("hqk,hkd->qhd", weights, values)
    return out


def rounding(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to `dtype`."""
    return torch.finfo(dtype).eps / 2


def rms_norm_tolerance(want: Tensor, dtype: torch.dtype) -> Tensor:
    """A bound of the error: the sum of N squares, five float32 roundings, one to `dtype`."""
    return want.abs() * ((want.shape[-1] + 5) * rounding(torch.float32) + rounding(dtype))


def rotate_tolerance(
    x: Tensor, positions: Tensor, cos_sin: Tensor, want: Tensor, dtype: torch.dtype
) -> Tensor:
    """A bound of the error: each product and their sum round in float32, the result to `dtype`."""
    cos, sin = cos_sin.abs().chunk(2, dim=-1)
    terms = rotate(x.abs(), positions, torch.cat([cos, -sin], dim=-1)).abs()
    largest = torch.maximum(terms, rotate(x.abs(), positions, torch.cat([cos, sin], dim=-1)).abs())
    return 3 * rounding(torch.float32) * largest + rounding(dtype) * want.abs()


def paged_attention_tolerance(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """A bound of the error of attention in float32, with results and factors rounded to the dtype.

    A sum of n products errs by n roundings of the sum of their magnitudes. So a score errs by at
    most D + 4 roundings (with scale and cap) of |scale| |q| |k|, whose factor exp(score - max) then
    errs by twice that, relatively, and by an error of its own: 4 roundings, or, where results are
    rounded to bfloat16, the 2^-18 of a short polynomial. What comes out is the average of
    the values weighted by the factors, of which both the dividend and the divisor err by the
    factors' error and by the sum over the keys. The factors may be rounded to the dtype, and the
    result is.
    """
    u = rounding(torch.float32)
    key_cache, value_cache = dequantize_rows(key_cache), dequantize_rows(value_cache)
    norms = [x.nan_to_num().double().norm(dim=-1).max().item() for x in (query, key_cache)]
    largest_score = abs(scale) * norms[0] * norms[1]
    exponential_error = 4 * u if query.dtype == torch.float32 else 2**-18
    factor_error = 2 * (query.shape[2] + 4) * u * (largest_score + soft_cap) + exponential_error
    error = 2 * (factor_error + (int(seq_lens.max()) + 4) * u) + 3 * rounding(query.dtype)
    average_of_magnitudes = paged_attention(
        query,
        key_cache,
        value_cache.abs(),
        block_tables,
        query_start_loc,
        seq_lens,
        scale,
        sliding_window,
        soft_cap,
    )
    return error * average_of_magnitudes
