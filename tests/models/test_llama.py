"""Our Llama computes what transformers computes."""

import json

import pytest
import torch
import transformers
from safetensors.torch import save_file

from pyengine.errors import ModelLoadError
from pyengine.models import ModelConfig, load_model
from pyengine.models.layers import AttentionInputs, new_kv_cache
from pyengine.weights import open_checkpoint
from tests.tiny import CONFIG, RandomWeights

SMALL = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS = {
    "plain": (transformers.LlamaConfig, {}),
    "tied": (transformers.LlamaConfig, {"tie_word_embeddings": True}),
    "biased": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "one kv head": (transformers.LlamaConfig, {"num_key_value_heads": 1}),
    "wide heads": (transformers.LlamaConfig, {"head_dim": 32}),
    "large theta": (transformers.LlamaConfig, {"rope_theta": 1e6}),
    "llama3 rope": (transformers.LlamaConfig, {"rope_scaling": LLAMA3_ROPE}),
    "linear rope": (
        transformers.LlamaConfig,
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "mistral with a window": (transformers.MistralConfig, {"sliding_window": 7}),
}


def reference_model(config_class, options) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = config_class(**SMALL | options, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        # The default initialization is so small that every logit is about the same.
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 1.0)
    return model.float().eval()


def logits_of(model, token_ids: list[int], chunks: list[int], block_size: int) -> torch.Tensor:
    """All logits of a sequence fed in chunks, its blocks in reverse order."""
    config = model.config
    num_blocks = -(-len(token_ids) // block_size)
    caches = new_kv_cache(
        config.num_layers,
        num_blocks,
        config.num_kv_heads,
        block_size,
        config.head_size,
        torch.float32,
    )
    block_table = torch.arange(num_blocks - 1, -1, -1, dtype=torch.int32)
    logits, first = [], 0
    for length in chunks:
        positions = torch.arange(first, first + length)
        inputs = AttentionInputs(
            positions=positions,
            slot_mapping=block_table[positions // block_size].long() * block_size
            + positions % block_size,
            block_tables=block_table[None],
            query_start_loc=torch.tensor([0, length], dtype=torch.int32),
            seq_lens=torch.tensor([first + length], dtype=torch.int32),
        )
        fed = torch.tensor(token_ids[first : first + length])
        logits.append(model.logits(model.forward(model.embed(fed), inputs, caches)))
        first += length
    return torch.cat(logits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant, tmp_path):
    reference = reference_model(*VARIANTS[variant])
    reference.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    config = ModelConfig.from_dict(checkpoint.config)
    model = load_model(config, checkpoint, torch.float32, config.max_position_embeddings)
    token_ids = torch.randint(99, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([token_ids])).logits[0]
    for chunks, block_size in (([40], 16), ([1] * 40, 4), ([7, 20, 13], 5)):
        logits = logits_of(model, token_ids, chunks, block_size)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_a_sharded_checkpoint_is_read_whole(tmp_path):
    reference = reference_model(*VARIANTS["plain"])
    reference.save_pretrained(tmp_path / "whole")
    reference.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    logits = []
    for folder in ("whole", "shards"):
        checkpoint = open_checkpoint(tmp_path / folder)
        config = ModelConfig.from_dict(checkpoint.config)
        model = load_model(config, checkpoint, torch.float32, 64)
        logits.append(logits_of(model, [1, 2, 3], [3], 4))
    assert torch.equal(*logits)


def broken(**changes) -> dict:
    return CONFIG | changes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (broken(architectures=["GPT2LMHeadModel"]), "'GPT2LMHeadModel' is not supported"),
        (broken(hidden_size=None), "hidden_size is missing"),
        (broken(num_hidden_layers=-1), "num_hidden_layers must be a positive integer, got -1"),
        (broken(num_key_value_heads=3), r"num_attention_heads \(4\) must be a multiple"),
        (broken(hidden_act="relu"), "hidden_act 'relu' is not supported"),
        (broken(rope_scaling={"rope_type": "yarn", "factor": 2}), "'yarn' is not supported"),
        (broken(rope_scaling={"rope_type": "llama3", "factor": 2}), "low_freq_factor is missing"),
        (broken(rope_scaling={"rope_type": "linear", "factor": []}), "factor must be a positive"),
        (
            broken(rope_scaling={**LLAMA3_ROPE, "high_freq_factor": 1}),
            "must be below high_freq_factor",
        ),
        (broken(rope_scaling=3), "rope_scaling must be an object, got 3"),
        (broken(rope_theta=10**400), "rope_theta must be a positive number, got 1000"),
        (broken(rms_norm_eps=float("nan")), "rms_norm_eps must be a positive number, got nan"),
        (broken(head_dim=2**31), "heads of 2147483648 values are not supported"),
        (broken(head_dim=15), "heads of 15 values are not supported"),
        (broken(tie_word_embeddings="no"), "tie_word_embeddings must be true or false, got 'no'"),
        (broken(sliding_window=["x"]), "sliding_window must be a positive integer"),
        (broken(architectures=1.5), "architectures must be a list of names, got 1.5"),
        (broken(intermediate_size=95), r"gate_proj.weight' has shape \[96, 64\].* \[95, 64\]"),
        (broken(num_hidden_layers=3), "lacks the tensor 'model.layers.2"),
    ],
)
def test_a_model_that_cannot_be_served_says_why(config, message):
    weights = RandomWeights(ModelConfig.from_dict(CONFIG))
    with pytest.raises(ModelLoadError, match=message):
        load_model(ModelConfig.from_dict(config), weights, torch.float32, 16)


def test_weights_keep_float32_if_they_came_so_and_bfloat16_otherwise(tmp_path):
    for name, expected in (
        ("float32", torch.float32),
        ("float16", torch.bfloat16),
        ("bfloat16", torch.bfloat16),
    ):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"dtype": name}))
        save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
        config = ModelConfig.from_dict(open_checkpoint(tmp_path).config)
        assert config.resolve_dtype("auto") is expected
        assert config.resolve_dtype("float32") is torch.float32
