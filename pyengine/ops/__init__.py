"""The typed Python face of the operators, and their fake (shape-only) kernels, a module a kind.

Letters in shapes are those of csrc/ops.h: T tokens in the flat batch, S sequences, H query heads,
K key/value heads, D head size, B blocks in the cache, P block size, V vocabulary, R logits rows.
Bad arguments raise RuntimeError with a message that names the argument.
"""

from pyengine.ops.attention import paged_attention, rope_and_cache
from pyengine.ops.decoder import (
    NOT_QUANTIZED,
    decoder_add_projection,
    decoder_create,
    decoder_destroy,
    decoder_run,
)
from pyengine.ops.ggml import GGML_BLOCKS, GGML_Q4_0, GGML_Q4_1, GGML_Q8_0, dequantize, quantize
from pyengine.ops.library import has_cuda_kernels, isa_name
from pyengine.ops.linear_layers import linear, pack_linear_weight, packed_embedding
from pyengine.ops.quantized import pack_quantized_weight, quantized_embedding, quantized_linear
from pyengine.ops.rowwise import (
    embedding,
    fused_add_rms_norm_,
    gather_logits,
    rms_norm,
    silu_and_mul,
)
from pyengine.ops.sampling import apply_penalties_, sample, token_logprobs

__all__ = [
    "GGML_BLOCKS",
    "GGML_Q4_0",
    "GGML_Q4_1",
    "GGML_Q8_0",
    "NOT_QUANTIZED",
    "apply_penalties_",
    "decoder_add_projection",
    "decoder_create",
    "decoder_destroy",
    "decoder_run",
    "dequantize",
    "embedding",
    "fused_add_rms_norm_",
    "gather_logits",
    "has_cuda_kernels",
    "isa_name",
    "linear",
    "pack_linear_weight",
    "pack_quantized_weight",
    "packed_embedding",
    "paged_attention",
    "quantize",
    "quantized_embedding",
    "quantized_linear",
    "rms_norm",
    "rope_and_cache",
    "sample",
    "silu_and_mul",
    "token_logprobs",
]
