"""The typed Python face of the operators, and their fake (shape-only) kernels.

Letters in shapes are those of csrc/ops.h: T tokens in the flat batch, S sequences, H query heads,
K key/value heads, D head size, B blocks in the cache, P block size, V vocabulary, R logits rows.
Bad arguments raise RuntimeError with a message that names the argument.
"""

import torch
from torch import Tensor

from pyengine._loader import load_ops

load_ops()
_ops = torch.ops.pyengine


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight for x [T, N], weight [N], in float32 -> [T, N]."""
    return _ops.rms_norm(x, weight, eps)


@torch.library.register_fake("pyengine::rms_norm")
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


def fused_add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """residual += x [T, N], then x = rms_norm(residual, weight, eps), both in place."""
    _ops.fused_add_rms_norm_(x, residual, weight, eps)


@torch.library.register_fake("pyengine::fused_add_rms_norm_")
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    return None


def rope_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """Rotates query [T, H, D] in place; writes rotated key and value [T, K, D] into the cache.

    The rotation is the half-split one (GPT-NeoX, Hugging Face) of the first `rotary_dim` elements
    of each head. Token t goes to slot slot_mapping[t] = block * P + offset; slot -1 is not written.

    Args:
        query, key, value: contiguous in their last two dimensions, any stride between tokens.
        positions: [T] int64, in [0, max_position).
        cos_sin: [max_position, rotary_dim] float32; a row is [cos | sin], each rotary_dim / 2.
        key_cache, value_cache: [B, K, P, D] of the query's dtype, or int8 [B, K, P, D + 4]: whole
            numbers from -127 to 127, then in four bytes the float32 that they are times of, the
            row's largest magnitude / 127. Blocks may lie apart. Mutated.
        slot_mapping: [T] int64, in [-1, B * P).
    """
    _ops.rope_and_cache(query, key, value, positions, cos_sin, key_cache, value_cache, slot_mapping)


@torch.library.register_fake("pyengine::rope_and_cache")
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    return None


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
) -> Tensor:
    """Causal attention of query [T, H, D] over cached keys and values -> [T, H, D], contiguous.

    One call serves any mix of prefill chunks, decodes and resumed sequences. Query i of sequence s
    stands at position p = seq_lens[s] - query_len + i and sees keys (p - sliding_window, p], or
    [0, p] if sliding_window is 0. Query head h reads key/value head h // (H / K). A row's result
    depends, to the bit, on its own query and context only: not on the block size, the physical
    blocks, its batch mates, the chunking or the thread count.

    Args:
        query: contiguous in its last two dimensions, any stride between tokens; D up to 256.
        key_cache, value_cache: [B, K, P, D] of the query's dtype, or int8 [B, K, P, D + 4] as
            rope_and_cache writes it.
        block_tables: [S, max_blocks] int32; entries that no query sees are not read.
        query_start_loc: [S + 1] int32, offsets of the sequences in the flat batch.
        seq_lens: [S] int32, context lengths with this step's tokens.
        scale: factor of the scores q . k.
        soft_cap: c > 0 turns a scaled score x into c * tanh(x / c); 0 leaves it.
    """
    return _ops.paged_attention(
        query,
        key_cache,
        value_cache,
        block_tables,
        query_start_loc,
        seq_lens,
        scale,
        sliding_window,
        soft_cap,
    )


@torch.library.register_fake("pyengine::paged_attention")
def _(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int,
    soft_cap: float,
) -> Tensor:
    return query.new_empty(query.shape)


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[:, :N]) * x[:, N:] for x [T, 2N], float32 or bfloat16 -> [T, N]."""
    return _ops.silu_and_mul(x)


@torch.library.register_fake("pyengine::silu_and_mul")
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    """The rows token_ids (int64 [T], in [0, V)) of weight [V, N] -> [T, N]."""
    return _ops.embedding(token_ids, weight)


@torch.library.register_fake("pyengine::embedding")
def _(token_ids: Tensor, weight: Tensor) -> Tensor:
    return weight.new_empty(token_ids.shape[0], weight.shape[1])


def packed_embedding(
    token_ids: Tensor, packed_weight: Tensor, num_rows: int, row_size: int
) -> Tensor:
    """The rows token_ids (int64 [T], in [0, num_rows)) of a weight that lies packed.

    Args:
        packed_weight: W [num_rows, row_size], through pack_linear_weight.

    Returns:
        [T, row_size], in the weight's dtype.
    """
    return _ops.packed_embedding(token_ids, packed_weight, num_rows, row_size)


@torch.library.register_fake("pyengine::packed_embedding")
def _(token_ids: Tensor, packed_weight: Tensor, num_rows: int, row_size: int) -> Tensor:
    return packed_weight.new_empty(token_ids.shape[0], row_size)


def pack_linear_weight(weight: Tensor) -> Tensor:
    """The numbers of weight [N, K] in the order in which `linear` reads them.

    Returns:
        [panels, steps, 32, inputs of a step]: a panel is 32 outputs, a step one input of float32
        or two of bfloat16; both dimensions padded with zeros. For `linear` on this device only.
    """
    return _ops.pack_linear_weight(weight)


@torch.library.register_fake("pyengine::pack_linear_weight")
def _(weight: Tensor) -> Tensor:
    step = 2 if weight.dtype is torch.bfloat16 else 1
    num_outputs, num_inputs = weight.shape
    return weight.new_empty(-(-num_outputs // 32), -(-num_inputs // step), 32, step)


def linear(
    x: Tensor,
    packed_weight: Tensor,
    bias: Tensor | None,
    num_outputs: int,
    *,
    float32_out: bool = False,
) -> Tensor:
    """x W^T + b, each row the same bits whatever rows are beside it.

    An element is summed in float32 over K in one fixed order, on any number of threads.

    Args:
        x: [T, K], float32 or bfloat16; rows may lie apart.
        packed_weight: W [N, K] of x's dtype, through pack_linear_weight.
        bias: [N] of x's dtype, or None.
        num_outputs: N.
        float32_out: return the sums themselves instead of rounding them to x's dtype.

    Returns:
        [T, N].
    """
    return _ops.linear(x, packed_weight, bias, num_outputs, float32_out)


@torch.library.register_fake("pyengine::linear")
def _(
    x: Tensor,
    packed_weight: Tensor,
    bias: Tensor | None,
    num_outputs: int,
    float32_out: bool,
) -> Tensor:
    dtype = torch.float32 if float32_out else x.dtype
    return x.new_empty(x.shape[0], num_outputs, dtype=dtype)


# The ggml types that quantized_linear computes with: number -> bytes that a panel of 32 outputs
# takes for a block of inputs, packed.
_PACKED_BLOCK_BYTES = {
    2: 576,
    3: 640,
    6: 704,
    7: 768,
    8: 1088,
    12: 4736,
    13: 5760,
    14: 6720,
}


def pack_quantized_weight(blocks: Tensor, ggml_type: int) -> Tensor:
    """The integers and scales of a quantized weight in the order in which `quantized_linear`
    reads them, in about as many bytes.

    Args:
        blocks: uint8 [N, row_bytes], the rows of W [N, K] as ggml blocks.
        ggml_type: one of the types of GGML_BLOCKS with blocks of more than one element.

    Returns:
        uint8 [panels of 32 outputs, bytes of a panel]. For this device only.
    """
    return _ops.pack_quantized_weight(blocks, ggml_type)


@torch.library.register_fake("pyengine::pack_quantized_weight")
def _(blocks: Tensor, ggml_type: int) -> Tensor:
    num_outputs, row_bytes = blocks.shape
    num_blocks = row_bytes // GGML_BLOCKS[ggml_type][1]
    return blocks.new_empty(-(-num_outputs // 32), num_blocks * _PACKED_BLOCK_BYTES[ggml_type])


def quantized_linear(
    x: Tensor,
    packed_weight: Tensor,
    ggml_type: int,
    bias: Tensor | None,
    num_outputs: int,
    *,
    float32_out: bool = False,
) -> Tensor:
    """x W^T + b in the weight's integers, each row the same bits whatever rows are beside it.

    x is rounded to int8: in each row, 32 inputs share a scale, their greatest magnitude / 127.
    Products with the weight's integers are summed exactly within a group of inputs, then scaled
    and summed in float32, the groups in one fixed order. NaN or infinity in x make their row NaN.

    Args:
        x: [T, K], float32 or bfloat16; rows may lie apart. K is a multiple of the type's block.
        packed_weight: W [N, K], through pack_quantized_weight.
        ggml_type: its type.
        bias: [N] of x's dtype, or None.
        num_outputs: N.
        float32_out: return the sums themselves instead of rounding them to x's dtype.

    Returns:
        [T, N].
    """
    return _ops.quantized_linear(x, packed_weight, ggml_type, bias, num_outputs, float32_out)


@torch.library.register_fake("pyengine::quantized_linear")
def _(
    x: Tensor,
    packed_weight: Tensor,
    ggml_type: int,
    bias: Tensor | None,
    num_outputs: int,
    float32_out: bool,
) -> Tensor:
    dtype = torch.float32 if float32_out else x.dtype
    return x.new_empty(x.shape[0], num_outputs, dtype=dtype)


def quantized_embedding(
    token_ids: Tensor,
    packed_weight: Tensor,
    ggml_type: int,
    num_rows: int,
    row_size: int,
    dtype: torch.dtype,
) -> Tensor:
    """The rows token_ids (int64 [T], in [0, num_rows)) of W [num_rows, row_size], dequantized.

    Args:
        packed_weight: W, through pack_quantized_weight.
        ggml_type: its type.
        dtype: float32 (the values of ggml's own dequantization) or bfloat16.

    Returns:
        [T, row_size].
    """
    return _ops.quantized_embedding(token_ids, packed_weight, ggml_type, num_rows, row_size, dtype)


@torch.library.register_fake("pyengine::quantized_embedding")
def _(
    token_ids: Tensor,
    packed_weight: Tensor,
    ggml_type: int,
    num_rows: int,
    row_size: int,
    dtype: torch.dtype,
) -> Tensor:
    return packed_weight.new_empty(token_ids.shape[0], row_size, dtype=dtype)


def decoder_create(
    cos_sin: Tensor,
    norms: list[Tensor],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    intermediate_size: int,
    scale: float,
    sliding_window: int,
    eps: float,
) -> int:
    """Begins a Llama-like decoder, all of whose layers run in one call.

    Args:
        cos_sin, scale, sliding_window: as for rope_and_cache and paged_attention.
        norms: the weights [hidden] of the norms in the order of use: two a layer, and the last.

    Returns:
        The number that names it, until decoder_destroy.
    """
    return _ops.decoder_create(
        cos_sin,
        norms,
        num_heads,
        num_kv_heads,
        head_size,
        intermediate_size,
        scale,
        sliding_window,
        eps,
    )


@torch.library.register_fake("pyengine::decoder_create")
def _(
    cos_sin: Tensor,
    norms: list[Tensor],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    intermediate_size: int,
    scale: float,
    sliding_window: int,
    eps: float,
) -> int:
    return 0


NOT_QUANTIZED = -1  # the type of a weight through pack_linear_weight, among ggml types


def decoder_add_projection(
    decoder: int,
    weights: list[Tensor],
    num_outputs: list[int],
    ggml_types: list[int],
    bias: Tensor | None,
) -> None:
    """Gives a decoder its next linear layer: of each layer q|k|v, output, gate|up, down.

    Args:
        weights: through pack_linear_weight or pack_quantized_weight, their outputs side by side.
        num_outputs: of each weight.
        ggml_types: of each weight, or NOT_QUANTIZED.
        bias: [sum of num_outputs], or None.
    """
    _ops.decoder_add_projection(decoder, weights, num_outputs, ggml_types, bias)


@torch.library.register_fake("pyengine::decoder_add_projection")
def _(
    decoder: int,
    weights: list[Tensor],
    num_outputs: list[int],
    ggml_types: list[int],
    bias: Tensor | None,
) -> None:
    return None


def decoder_run(
    decoder: int,
    residual: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_logits: Tensor | None,
    num_rows: int,
) -> Tensor:
    """All layers, and the norm after them. The same bits as by the single operators.

    Args:
        residual: [T, hidden], the embeddings; overwritten.
        positions, slot_mapping, block_tables, query_start_loc, seq_lens: as for rope_and_cache
            and paged_attention.
        key_cache, value_cache: [B, layers, K, P, D], mutated.
        num_logits: int32 [S], as for gather_logits, or None for the rows of all T tokens.
        num_rows: the sum of num_logits, or T.

    Returns:
        [num_rows, hidden].
    """
    return _ops.decoder_run(
        decoder,
        residual,
        positions,
        slot_mapping,
        block_tables,
        query_start_loc,
        seq_lens,
        key_cache,
        value_cache,
        num_logits,
        num_rows,
    )


@torch.library.register_fake("pyengine::decoder_run")
def _(
    decoder: int,
    residual: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_logits: Tensor | None,
    num_rows: int,
) -> Tensor:
    return residual.new_empty(num_rows, residual.shape[1])


def decoder_destroy(decoder: int) -> None:
    """Lets go of a decoder's weights."""
    _ops.decoder_destroy(decoder)


@torch.library.register_fake("pyengine::decoder_destroy")
def _(decoder: int) -> None:
    return None


def isa_name() -> str:
    """The instruction set that the CPU kernels use: "portable", "avx2" or "avx512".

    Raises:
        RuntimeError: PYENGINE_ISA asks for one that this processor doesn't have.
    """
    return _ops.isa_name()


def gather_logits(
    hidden: Tensor, query_start_loc: Tensor, num_logits: Tensor, num_rows: int
) -> Tensor:
    """The rows that need logits: the last num_logits[s] of each sequence's query, in order.

    Args:
        hidden: [T, N], float32 or bfloat16.
        query_start_loc: int32 [S + 1], where each sequence's rows begin.
        num_logits: int32 [S], each from 0 to the length of the sequence's query.
        num_rows: the sum of num_logits.

    Returns:
        [num_rows, N].
    """
    return _ops.gather_logits(hidden, query_start_loc, num_logits, num_rows)


@torch.library.register_fake("pyengine::gather_logits")
def _(hidden: Tensor, query_start_loc: Tensor, num_logits: Tensor, num_rows: int) -> Tensor:
    return hidden.new_empty(num_rows, hidden.shape[1])


def apply_penalties_(
    logits: Tensor,
    token_ids: Tensor,
    token_start_loc: Tensor,
    num_prompt_tokens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Penalizes the tokens of each row's history, in place.

    Once for each distinct token of prompt and output, a positive logit is divided by the
    repetition penalty and another one multiplied by it (Keskar et al. 2019). Then, for tokens of
    the output, frequency times their count and presence are subtracted.

    Args:
        logits: float32 [R, V], mutated.
        token_ids: int64 [sum of lengths], the histories one after the other: prompt, then output.
        token_start_loc: int32 [R + 1], where each row's history begins.
        num_prompt_tokens: int32 [R], how many tokens of each history are the prompt's.
        repetition: float32 [R]; 1 is off.
        presence: float32 [R]; 0 is off.
        frequency: float32 [R]; 0 is off.
    """
    _ops.apply_penalties_(
        logits, token_ids, token_start_loc, num_prompt_tokens, repetition, presence, frequency
    )


@torch.library.register_fake("pyengine::apply_penalties_")
def _(
    logits: Tensor,
    token_ids: Tensor,
    token_start_loc: Tensor,
    num_prompt_tokens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    return None


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    output_indices: Tensor,
) -> Tensor:
    """One token id per row. A row's token is a function of that row's arguments alone.

    Filters apply to softmax(logits / temperature) in this order: min-p keeps tokens at least
    min_p times as likely as the likeliest; top-k keeps the k likeliest; top-p keeps the fewest
    likeliest tokens that hold at least top_p of what remains, always at least one. Ties go to the
    lowest ids. The draw inverts the distribution, in the order of ids, at a uniform number from
    Philox4x32-10 (Salmon et al. 2011) with the seed as key and the output index as counter.

    NaN counts as -inf. A row with a +inf, or with nothing above -inf, is sampled greedily.

    Args:
        logits: float32 [R, V].
        temperature: float32 [R]; 0 is greedy.
        top_k: int32 [R]; 0 or less is off.
        top_p: float32 [R]; 1 is off.
        min_p: float32 [R]; 0 is off.
        seeds: int64 [R].
        output_indices: int64 [R], how many tokens the sequence has generated before this one.

    Returns:
        int64 [R].
    """
    return _ops.sample(logits, temperature, top_k, top_p, min_p, seeds, output_indices)


@torch.library.register_fake("pyengine::sample")
def _(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    output_indices: Tensor,
) -> Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.int64)


def token_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities of one token per row, and of the likeliest tokens.

    NaN counts as -inf. A row with a +inf, or with nothing above -inf, has log-probabilities NaN.

    Args:
        logits: float32 [R, V].
        token_ids: int64 [R].
        num_top: how many of the likeliest tokens to report, 0 to V.

    Returns:
        logprob: float32 [R], the log-softmax of the logits at token_ids.
        rank: int32 [R], 1 + the number of tokens with a greater logit.
        top_ids: int64 [R, num_top], likeliest first, ties by ascending id.
        top_logprobs: float32 [R, num_top].
    """
    return _ops.token_logprobs(logits, token_ids, num_top)


@torch.library.register_fake("pyengine::token_logprobs")
def _(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = logits.shape[0]
    return (
        logits.new_empty(rows),
        logits.new_empty(rows, dtype=torch.int32),
        logits.new_empty(rows, num_top, dtype=torch.int64),
        logits.new_empty(rows, num_top),
    )


# The ggml types that dequantize reads: number -> (elements, bytes) of a block.
GGML_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    30: (1, 2),  # BF16
}


def dequantize(data: Tensor, ggml_type: int, dtype: torch.dtype) -> Tensor:
    """Rows of ggml blocks to float32 (the values of ggml's own dequantization) or bfloat16.

    Args:
        data: uint8 [rows, row_bytes], whole blocks.
        ggml_type: a key of GGML_BLOCKS.
        dtype: float32 or bfloat16 (float32 rounded to nearest even).

    Returns:
        [rows, row_size].
    """
    return _ops.dequantize(data, ggml_type, dtype)


@torch.library.register_fake("pyengine::dequantize")
def _(data: Tensor, ggml_type: int, dtype: torch.dtype) -> Tensor:
    num_elements, num_bytes = GGML_BLOCKS[ggml_type]
    return data.new_empty(data.shape[0], data.shape[1] // num_bytes * num_elements, dtype=dtype)


# The ggml types that quantize writes, all in blocks of 32.
GGML_Q4_0, GGML_Q4_1, GGML_Q8_0 = 2, 3, 8


def quantize(weight: Tensor, ggml_type: int) -> Tensor:
    """Rounds rows to ggml blocks; a block's bytes depend on its 32 values alone.

    Q8_0 rounds as ggml does. Q4_0 and Q4_1 look for the scale and minimum of least squared error
    (csrc/cpu/quantize_kernel.h), 10 to 20 % less of it than ggml's rounding has.

    Args:
        weight: [N, K] float32 or bfloat16, K a multiple of 32, all finite.
        ggml_type: GGML_Q4_0, GGML_Q4_1 or GGML_Q8_0.

    Returns:
        uint8 [N, row_bytes], as dequantize reads them.
    """
    return _ops.quantize(weight, ggml_type)


@torch.library.register_fake("pyengine::quantize")
def _(weight: Tensor, ggml_type: int) -> Tensor:
    num_elements, num_bytes = GGML_BLOCKS[ggml_type]
    return weight.new_empty(
        weight.shape[0], weight.shape[1] // num_elements * num_bytes, dtype=torch.uint8
    )
