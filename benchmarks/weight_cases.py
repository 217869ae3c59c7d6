"""The operators that read weights, at the shapes of a model."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.op_case import Case, ModelShape, copies, name
from pyengine import ops

# The formats of quantized weights, by their numbers in ggml.
FORMATS = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
}


def weight_cases(model: ModelShape, cold_bytes: int) -> Iterator[Case]:
    """See `all_cases`."""
    yield from _linear_cases(model, cold_bytes)
    yield from _quantized_linear_cases(model, cold_bytes)
    yield from _embedding_cases(model)
    yield from _loading_cases(model, cold_bytes)


def _weights(model: ModelShape) -> tuple[tuple[str, int, int], ...]:
    """Name, outputs and inputs of the products of a layer, and of the language model head."""
    attention_outputs = (model.num_heads + 2 * model.num_kv_heads) * model.head_size
    return (
        ("qkv", attention_outputs, model.hidden_size),
        ("gate|up", 2 * model.intermediate_size, model.hidden_size),
        ("down", model.hidden_size, model.intermediate_size),
        ("head", model.vocab_size, model.hidden_size),
    )


def _linear_cases(model: ModelShape, cold_bytes: int) -> Iterator[Case]:
    qkv, gate_up, down, lm_head = _weights(model)
    for dtype, rows, weights in (
        (torch.bfloat16, (1, 16, 64, 512), (qkv, gate_up, down)),
        (torch.bfloat16, (1, 16, 64), (lm_head,)),
        (torch.float32, (1, 16, 512), (gate_up,)),
    ):
        for layer_name, num_outputs, num_inputs in weights:
            weight = torch.randn(num_outputs, num_inputs).to(dtype)
            packed = ops.pack_linear_weight(weight)
            packed_copies = [packed.clone() for _ in copies(weight.nbytes, cold_bytes)]
            for num_rows in rows:
                x = torch.randn(num_rows, num_inputs).to(dtype)
                yield Case(
                    "linear",
                    f"{layer_name} {num_rows}x{num_inputs}x{num_outputs} {name(dtype)}",
                    [partial(ops.linear, x, copy, None, num_outputs) for copy in packed_copies],
                    weight.nbytes + x.nbytes + num_rows * num_outputs * dtype.itemsize,
                    2 * num_rows * num_inputs * num_outputs,
                    name(dtype),
                )


def _quantized_linear_cases(model: ModelShape, cold_bytes: int) -> Iterator[Case]:
    qkv, gate_up, down, lm_head = _weights(model)
    for format_name, rows, weights in (
        ("Q4_1", (1, 16, 64, 512), (qkv, gate_up, down)),
        ("Q4_1", (1, 16, 64), (lm_head,)),
        # Blocks of the K formats are 256 inputs, which the model's hidden size has no multiple of.
        *((format_name, (1, 64), (down,)) for format_name in FORMATS if format_name != "Q4_1"),
    ):
        ggml_type = FORMATS[format_name]
        for layer_name, num_outputs, num_inputs in weights:
            blocks = _zero_blocks(num_outputs, num_inputs, ggml_type)
            packed = ops.pack_quantized_weight(blocks, ggml_type)
            packed_copies = [packed.clone() for _ in copies(packed.nbytes, cold_bytes)]
            for num_rows in rows:
                x = torch.randn(num_rows, num_inputs).bfloat16()
                yield Case(
                    "quantized_linear",
                    f"{layer_name} {num_rows}x{num_inputs}x{num_outputs} {format_name}",
                    [
                        partial(ops.quantized_linear, x, copy, ggml_type, None, num_outputs)
                        for copy in packed_copies
                    ],
                    packed.nbytes + x.nbytes + num_rows * num_outputs * x.itemsize,
                    2 * num_rows * num_inputs * num_outputs,
                    "int8",
                )


def _embedding_cases(model: ModelShape) -> Iterator[Case]:
    num_outputs, num_inputs = model.vocab_size, model.hidden_size
    packed = ops.pack_linear_weight(torch.randn(num_outputs, num_inputs).bfloat16())
    q4_1 = FORMATS["Q4_1"]
    packed_q4_1 = ops.pack_quantized_weight(_zero_blocks(num_outputs, num_inputs, q4_1), q4_1)
    for num_rows in (1, 64, 512):
        ids = torch.randint(num_outputs, (num_rows,))
        shape = f"{num_rows}x{num_inputs}"
        row_bytes = 2 * num_inputs
        yield Case(
            "packed_embedding",
            f"{shape} bfloat16",
            [partial(ops.packed_embedding, ids, packed, num_outputs, num_inputs)],
            2 * num_rows * row_bytes,
        )
        dequantized = partial(
            ops.quantized_embedding,
            ids,
            packed_q4_1,
            q4_1,
            num_outputs,
            num_inputs,
            torch.bfloat16,
        )
        yield Case(
            "quantized_embedding",
            f"{shape} Q4_1",
            [dequantized],
            num_rows * (row_bytes + packed_q4_1.nbytes // num_outputs),
        )


def _loading_cases(model: ModelShape, cold_bytes: int) -> Iterator[Case]:
    _, num_outputs, num_inputs = _weights(model)[1]
    shape = f"{num_outputs}x{num_inputs}"
    weight_bytes = 2 * num_outputs * num_inputs
    weights = [
        torch.randn(num_outputs, num_inputs).bfloat16() for _ in copies(weight_bytes, cold_bytes)
    ]
    q4_1 = FORMATS["Q4_1"]
    blocks = _zero_blocks(num_outputs, num_inputs, q4_1)
    block_copies = [blocks.clone() for _ in copies(blocks.nbytes, cold_bytes)]
    yield Case(
        "pack_linear_weight",
        f"{shape} bfloat16",
        [partial(ops.pack_linear_weight, weight) for weight in weights],
        2 * weight_bytes,
    )
    yield Case(
        "pack_quantized_weight",
        f"{shape} Q4_1",
        [partial(ops.pack_quantized_weight, copy, q4_1) for copy in block_copies],
        2 * blocks.nbytes,
    )
    yield Case(
        "dequantize",
        f"{shape} Q4_1 to bfloat16",
        [partial(ops.dequantize, copy, q4_1, torch.bfloat16) for copy in block_copies],
        blocks.nbytes + weight_bytes,
    )
    yield Case(
        "quantize",
        f"{shape} bfloat16 to Q4_1",
        [partial(ops.quantize, weight, q4_1) for weight in weights],
        blocks.nbytes + weight_bytes,
    )


def _zero_blocks(num_outputs: int, num_inputs: int, ggml_type: int) -> torch.Tensor:
    """A weight of zeros; products take as long with it as with any."""
    num_elements, num_bytes = ops.GGML_BLOCKS[ggml_type]
    row_bytes = num_inputs // num_elements * num_bytes
    return torch.zeros(num_outputs, row_bytes, dtype=torch.uint8)
