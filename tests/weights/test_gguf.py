"""GGUF files made here: every type of tensor, every key, and everything that can be broken."""

import contextlib
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyengine import ops
from pyengine.errors import ModelLoadError
from pyengine.weights import open_checkpoint
from pyengine.weights.ggml_types import SUPPORTED_TYPES
from pyengine.weights.gguf_file import GGUFFile

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, VOCAB = 256, 4, 2, 64, 512, 96

Change = Callable[[GGUFWriter], None]


def random_matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def write(
    path: Path,
    *changes: Change,
    arch: str = "llama",
    without: str = "",
) -> Path:
    """A model of one layer.

    Args:
        changes: each adds something.
        without: the one key, or the one tensor, to leave out.
    """
    writer = GGUFWriter(path, arch)
    keys = {
        "context_length": 1024,
        "embedding_length": HIDDEN,
        "block_count": 1,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
    }
    for key, value in keys.items():
        if key != without:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_layer_norm_rms_eps(1e-6)
    shapes = {
        "token_embd": (VOCAB, HIDDEN),
        "blk.0.attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_gate": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_up": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FEED_FORWARD),
    }
    for name, shape in shapes.items():
        if name != without:
            writer.add_tensor(f"{name}.weight", random_matrix(*shape))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    for change in changes:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_whole_model_has_hugging_faces_names_and_terms(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "model.gguf"))
    layer = "model.layers.0."
    projections = [f"self_attn.{part}_proj" for part in "qkvo"]
    projections += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    norms = ["input_layernorm", "post_attention_layernorm"]
    assert checkpoint.names() == [
        "model.embed_tokens.weight",
        *(f"{layer}{name}.weight" for name in projections + norms),
        "model.norm.weight",
    ]
    config = checkpoint.config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["head_dim"], config["vocab_size"]) == (HEAD_DIM, VOCAB)
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-6, 10000.0)
    assert (config["torch_dtype"], config["tie_word_embeddings"]) == ("float32", True)
    assert config["rope_scaling"] is None
    assert not {"partial_rotary_factor", "rope_freq_factors", "sliding_window"} & config.keys()


def test_optional_parts_are_passed_on(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_tensor("output.weight", random_matrix(VOCAB, HIDDEN))
        writer.add_tensor("blk.0.attn_q.bias", np.ones(HEADS * HEAD_DIM, np.float32))
        writer.add_tensor("rope_freqs.weight", np.arange(32, dtype=np.float32))
        writer.add_rope_freq_base(500000.0)
        writer.add_rope_dimension_count(32)
        writer.add_sliding_window(128)

    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", change))
    config = checkpoint.config
    assert (config["tie_word_embeddings"], config["attention_bias"]) == (False, True)
    assert (config["rope_theta"], config["partial_rotary_factor"]) == (500000.0, 0.5)
    assert config["sliding_window"] == 128
    assert "lm_head.weight" in checkpoint.names()
    assert "model.layers.0.self_attn.q_proj.bias" in checkpoint.names()
    factors = checkpoint.load(config["rope_freq_factors"], torch.float32)
    assert factors.tolist() == list(range(32))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"scaling.type": "none"}, None),
        (
            {"scaling.type": "linear", "scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"scaling.type": "yarn", "scaling.factor": 0.1, "scaling.original_context_length": 64},
            {"rope_type": "yarn", "factor": 0.1, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rope_scaling_is_put_in_hugging_faces_terms(
    tmp_path: Path, keys: dict[str, object], expected: dict[str, object] | None
) -> None:
    def change(writer: GGUFWriter) -> None:
        for key, value in keys.items():
            add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
            add[type(value)](f"llama.rope.{key}", value)

    config = open_checkpoint(write(tmp_path / "model.gguf", change)).config
    assert config["rope_scaling"] == expected


def test_queries_and_keys_are_put_in_half_split_order(tmp_path: Path) -> None:
    """As the converters to GGUF permute them: row 2 i of a head is its row i, row 2 i + 1 its
    row i + head_dim / 2."""

    def permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
        heads = weight.reshape(num_heads, 2, HEAD_DIM // 2, *weight.shape[1:])
        return heads.swapaxes(1, 2).reshape(weight.shape)

    query, key = random_matrix(HEADS * HEAD_DIM, HIDDEN, 1), random_matrix(128, HIDDEN, 2)
    bias = random_matrix(1, 128, 3)[0]

    def change(writer: GGUFWriter) -> None:
        writer.add_tensor("blk.1.attn_q.weight", permuted(query, HEADS))
        writer.add_tensor("blk.1.attn_k.weight", permuted(key, KV_HEADS))
        writer.add_tensor("blk.1.attn_k.bias", permuted(bias, KV_HEADS))

    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", change))
    for name, expected in {
        "q_proj.weight": query,
        "k_proj.weight": key,
        "k_proj.bias": bias,
    }.items():
        loaded = checkpoint.load(f"model.layers.1.self_attn.{name}", torch.float32)
        assert loaded.is_contiguous()
        assert torch.equal(loaded, torch.from_numpy(expected))


@pytest.mark.parametrize("type_name", [type_.name for type_ in SUPPORTED_TYPES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_supported_type_is_read(tmp_path: Path, type_name: str, dtype: torch.dtype) -> None:
    kind = GGMLQuantizationType[type_name]
    block_values, block_bytes = ops.GGML_BLOCKS[kind]
    if type_name.endswith("_K"):  # which the gguf package can read, but not write
        rng = np.random.default_rng(0)
        data = rng.integers(0, 256, (VOCAB, HIDDEN // block_values * block_bytes), np.uint8)
        for scale in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[type_name]:  # float16, finite
            data[:, scale + 1] = 0x2C
    else:
        data = quants.quantize(random_matrix(VOCAB, HIDDEN), kind)

    def change(writer: GGUFWriter) -> None:
        writer.add_tensor("output.weight", data, raw_dtype=kind)

    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", change))
    loaded = checkpoint.load("lm_head.weight", dtype)
    expected = torch.from_numpy(quants.dequantize(data, kind).reshape(VOCAB, HIDDEN))
    assert (loaded.dtype, loaded.shape) == (dtype, (VOCAB, HIDDEN))
    assert torch.equal(loaded, expected.to(dtype))


def test_matrices_are_handed_out_as_they_are_quantized_in_the_same_order(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.Q4_1
    rows = quants.quantize(random_matrix(HEADS * HEAD_DIM, HIDDEN), kind)

    def change(writer: GGUFWriter) -> None:
        for part in ("attn_q", "attn_output"):
            writer.add_tensor(f"blk.1.{part}.weight", rows, raw_dtype=kind)

    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", change))
    assert checkpoint.is_quantized
    for part in ("q_proj", "o_proj"):
        name = f"model.layers.1.self_attn.{part}.weight"
        quantized = checkpoint.load_quantized(name)
        assert quantized.type.name == "Q4_1"
        expected = checkpoint.load(name, torch.float32)
        assert quantized.shape == expected.shape
        assert torch.equal(
            ops.dequantize(quantized.data, quantized.type.id, torch.float32), expected
        )
    assert checkpoint.load_quantized("model.norm.weight") is None
    assert checkpoint.load_quantized("model.layers.0.self_attn.q_proj.weight") is None
    assert not open_checkpoint(write(tmp_path / "plain.gguf")).is_quantized


def test_the_reader_and_the_operator_know_the_same_types() -> None:
    blocks = {type_.id: (type_.block_values, type_.block_bytes) for type_ in SUPPORTED_TYPES}
    assert blocks == ops.GGML_BLOCKS


def test_loaded_tensors_do_not_change_with_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    weight = open_checkpoint(path).load("model.norm.weight", torch.float32)
    with path.open("r+b") as file:
        file.seek(0)
        file.write(b"\xff" * path.stat().st_size)
    assert torch.equal(weight, torch.ones(HIDDEN))


def test_the_digest_is_that_of_configuration_and_tensors(tmp_path: Path) -> None:
    first = open_checkpoint(write(tmp_path / "a.gguf")).digest()
    assert open_checkpoint(write(tmp_path / "b.gguf")).digest() == first
    change: Change = lambda writer: writer.add_rope_freq_base(1.0)  # noqa: E731
    assert open_checkpoint(write(tmp_path / "a.gguf", change)).digest() != first
    with (tmp_path / "b.gguf").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert open_checkpoint(tmp_path / "b.gguf").digest() != first


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    values: dict[str, object] = {
        "a.uint8": 255,
        "a.int8": -128,
        "a.uint16": 65535,
        "a.int16": -32768,
        "a.uint32": 2**32 - 1,
        "a.int32": -(2**31),
        "a.uint64": 2**64 - 1,
        "a.int64": -(2**63),
        "a.float32": 0.5,
        "a.float64": 0.1,
        "a.bool": True,
        "a.string": "héllo",
    }

    def change(writer: GGUFWriter) -> None:
        for key, value in values.items():
            getattr(writer, f"add_{key.removeprefix('a.')}")(key, value)
        writer.add_array("a.numbers", [1, -2, 3])
        writer.add_array("a.strings", ["", "é", "three"])

    file = GGUFFile(write(tmp_path / "model.gguf", change))
    assert {key: file.metadata[key] for key in values} == values
    assert file.metadata["a.numbers"] == [1, -2, 3]
    assert file.metadata["a.strings"] == ["", "é", "three"]


def refuses(path: Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=re.escape(f"{path}: ") + ".*" + message):
        open_checkpoint(path)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    refuses(path, "not a GGUF file")
    path.write_bytes(b"PK\x03\x04" * 10)
    refuses(path, "not a GGUF file")
    with pytest.raises(ModelLoadError, match="nowhere: no such file or folder"):
        open_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (struct.pack("<I", 1), "GGUF version 1 isn't supported, only 2 and 3"),
        (struct.pack("<I", 4), "GGUF version 4 isn't supported, only 2 and 3"),
        (struct.pack(">I", 3), "big-endian GGUF files aren't supported"),
    ],
)
def test_other_versions_are_refused(tmp_path: Path, version: bytes, message: str) -> None:
    path = write(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:4] + version + path.read_bytes()[8:])
    refuses(path, message)


def test_version_2_is_read_as_version_3(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    expected = open_checkpoint(path).config
    path.write_bytes(path.read_bytes()[:4] + struct.pack("<I", 2) + path.read_bytes()[8:])
    assert open_checkpoint(path).config == expected


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_array("a.strings", ["one", "two"])
        writer.add_array("a.numbers", [1, 2])

    path = write(tmp_path / "model.gguf", change)
    whole = path.read_bytes()
    header = whole.index(b"output_norm.weight") + 64
    for length in [*range(4, header, 7), header, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        refuses(path, "broken GGUF file: .* is cut short")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.dictionaries(st.integers(4, 1200), st.integers(0, 255), min_size=1, max_size=4))
def test_damage_anywhere_in_the_header_is_refused_or_does_no_harm(
    tmp_path: Path, damage: dict[int, int]
) -> None:
    path = tmp_path / "model.gguf"
    if not path.exists():
        write(path)
    content = bytearray(path.read_bytes())
    for position, byte in damage.items():
        content[position] = byte
    damaged = tmp_path / "damaged.gguf"
    damaged.unlink(missing_ok=True)  # not written over: the last one may still be mapped
    damaged.write_bytes(content)
    with contextlib.suppress(ModelLoadError):
        open_checkpoint(damaged)


def header(num_tensors: int, num_metadata: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_metadata)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def entry(name: bytes, shape: list[int], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dims + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(0, 2**62), "the header is cut short"),
        (header(2**62, 0), "the header is cut short"),
        (header(0, 1) + struct.pack("<Q", 2**63) + b"x" * 64, "the header is cut short"),
        (
            header(0, 1) + string(b"key") + struct.pack("<I", 99),
            "key has the unknown value type 99",
        ),
        (
            header(0, 1) + string(b"key") + struct.pack("<IIQ", 9, 9, 1) + b"x" * 64,
            "key is a list of the unknown value type 9",
        ),
        (
            header(0, 1) + string(b"key") + struct.pack("<IIQ", 9, 8, 2**60) + b"\0" * 64,
            "cut short in a list of strings",
        ),
        (
            header(0, 1) + string(b"key") + struct.pack("<IIQ", 9, 4, 2**61) + b"\0" * 64,
            "the header is cut short",
        ),
        (header(0, 1) + string(b"\xff"), "the string at byte 32 isn't UTF-8"),
        (
            header(0, 1) + string(b"key") + struct.pack("<IIQ", 9, 8, 1) + string(b"\xff"),
            "isn't UTF-8",
        ),
        (
            header(0, 1) + string(b"general.alignment") + struct.pack("<II", 4, 12),
            "general.alignment must be a power of two from 8 on, got 12",
        ),
        (
            header(0, 1) + string(b"general.alignment") + struct.pack("<I", 8) + string(b"x"),
            "general.alignment must be of type int, got 'x'",
        ),
        (header(1, 0) + entry(b"t", [], 0, 0), "tensor t has 0 dimensions, expected 1 to 4"),
        (header(1, 0) + entry(b"t", [1] * 5, 0, 0), "tensor t has 5 dimensions, expected 1 to 4"),
        (header(1, 0) + entry(b"t", [0], 0, 0), r"tensor t has the shape \[0\]"),
        (
            header(1, 0) + entry(b"t", [48], 2, 0) + b"\0" * 64,
            r"tensor t has the shape \[48\], but the rows of Q4_0 tensors are a multiple of 32",
        ),
        (
            header(1, 0) + entry(b"t", [256], 10, 0) + b"\0" * 256,
            r"tensor t has the type Q2_K, which isn't supported; the supported types are "
            "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K",
        ),
        (
            header(1, 0) + entry(b"t", [1], 77, 0) + b"\0" * 64,
            "tensor t has the type number 77, which isn't supported",
        ),
        (
            header(1, 0) + entry(b"t", [1], 0, 8) + b"\0" * 64,
            "tensor t begins at 8, which isn't a multiple of the alignment 32",
        ),
        (
            header(1, 0) + entry(b"t", [1], 0, 2**63) + b"\0" * 64,
            "the data is cut short: tensor t ends at byte",
        ),
        (
            header(1, 0) + entry(b"t", [2**62, 2**62], 0, 0) + b"\0" * 64,
            "the data is cut short: tensor t ends at byte",
        ),
        (
            # Zeros read as metadata that has an empty key: gigabytes of them must not take minutes.
            header(0, 2**63) + b"\0" * 64,
            "the key  occurs twice",
        ),
        (
            header(2, 0) + entry(b"t", [1], 0, 0) * 2 + b"\0" * 64,
            "tensor t occurs twice",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_inconsistent_headers_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refuses(path, message)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("embedding_length", "the key llama.embedding_length is missing"),
        ("block_count", "the key llama.block_count is missing"),
        ("feed_forward_length", "the key llama.feed_forward_length is missing"),
        ("attention.head_count", "the key llama.attention.head_count is missing"),
        ("context_length", "the key llama.context_length is missing"),
        ("token_embd", "the tensor token_embd.weight is missing"),
    ],
)
def test_files_that_lack_something_are_refused(tmp_path: Path, key: str, message: str) -> None:
    refuses(write(tmp_path / "model.gguf", without=key), message)


def test_models_that_are_not_llamas_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", arch="gemma2")
    refuses(path, "the architecture 'gemma2' isn't supported in GGUF files, only 'llama'")

    def add_experts(writer: GGUFWriter) -> None:
        writer.add_tensor("blk.0.ffn_gate_inp.weight", random_matrix(8, HIDDEN))

    path = write(tmp_path / "model.gguf", add_experts)
    refuses(path, r"the tensor blk\.0\.ffn_gate_inp\.weight has no place in a Llama-architecture")


def test_one_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", lambda writer: writer.add_uint16("split.count", 3))
    refuses(path, "this is one part of a model that was split into several files")


def test_a_tensor_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "model.gguf"))
    with pytest.raises(ModelLoadError, match=r"there is no tensor lm_head\.weight"):
        checkpoint.load("lm_head.weight", torch.float32)
