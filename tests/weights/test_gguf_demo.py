"""The GGUF reader on a real file: the demo model's."""

from pathlib import Path

import pytest
import torch

from pyengine.weights import open_checkpoint


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
    ("name", "first", "last"),
    [
        ("model.embed_tokens.weight", -0.10654449462890625, -0.0417022705078125),
        ("model.norm.weight", 1.7578125, 1.984375),
        ("model.layers.7.mlp.down_proj.weight", -0.127593994140625, 0.05706787109375),
        ("model.layers.29.self_attn.v_proj.weight", 0.1417236328125, 0.05322265625),
    ],
)
def test_values_are_those_that_the_gguf_package_reads(
    demo_model_path: Path, name: str, first: float, last: float
) -> None:
    values = open_checkpoint(demo_model_path).load(name, torch.float32).flatten()
    assert (values[0].item(), values[-1].item()) == (first, last)
