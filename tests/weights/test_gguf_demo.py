"""The GGUF reader on a real file: the demo model's."""

from pathlib import Path

import pytest
import torch
from gguf import GGUFReader, quants

from pyengine.weights import open_checkpoint


@pytest.fixture(scope="module")
def reader(demo_model_path: Path) -> GGUFReader:
    return GGUFReader(demo_model_path)


def test_config_is_that_of_smollm2(demo_model_path: Path) -> None:
    checkpoint = open_checkpoint(demo_model_path)
    assert checkpoint.config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": [2],
    }
    assert checkpoint.generation_config == {"bos_token_id": 1, "eos_token_id": [2]}
    assert len(checkpoint.names()) == 272


@pytest.mark.parametrize(
    ("name", "gguf_name"),
    [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
        ("model.layers.29.self_attn.v_proj.weight", "blk.29.attn_v.weight"),
    ],
)
def test_values_are_those_of_the_reference_reader(
    demo_model_path: Path, reader: GGUFReader, name: str, gguf_name: str
) -> None:
    (tensor,) = (tensor for tensor in reader.tensors if tensor.name == gguf_name)
    expected = torch.from_numpy(quants.dequantize(tensor.data, tensor.tensor_type).copy())
    actual = open_checkpoint(demo_model_path).load(name, torch.float32)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
