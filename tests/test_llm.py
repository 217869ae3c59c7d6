"""A Hugging Face folder, through the public API and the command line, to text."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pyengine import LLM, SamplingParams
from pyengine.cli import main
from pyengine.models import ModelConfig
from tests.engine.harness import solo
from tests.tiny import CONFIG, RandomWeights, Weights, tiny_model

PROMPT = "The engine reads float weights and says"
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a checkpoint, with a tokenizer whose tokens are bytes too."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    weights = RandomWeights(ModelConfig.from_dict(CONFIG))
    tensors = {name: weights.load(name, torch.float32) for name in weights.names()}
    save_file(tensors, folder / "model.safetensors")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: token_id for token_id, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return folder


@pytest.mark.parametrize(
    ("quantization", "weights"), [("none", "float"), ("int8", "int8"), ("int4", "int4")]
)
def test_a_folder_of_float_weights_is_quantized_as_it_is_loaded(
    folder: Path, quantization: str, weights: Weights
) -> None:
    llm = LLM(str(folder), quantization=quantization, num_kv_blocks=16)
    [result] = llm.generate(PROMPT, PARAMS)
    assert len(result.prompt_token_ids) == len(PROMPT)
    expected = solo(list(result.prompt_token_ids), PARAMS, tiny_model(weights=weights))
    assert result.outputs[0].token_ids == expected.outputs[0].token_ids
    assert result.outputs[0].text == llm.tokenizer.decode(expected.outputs[0].token_ids)


def test_the_command_line_quantizes_as_the_library_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--temperature=0", "--max-tokens=12", "--ignore-eos", "--num-kv-blocks=16"]
    texts = {}
    for quantization in ("none", "int8", "int4"):
        argv = ["generate", str(folder), PROMPT, *flags, f"--quantization={quantization}"]
        assert main(argv) == 0
        texts[quantization] = capsys.readouterr().out.removesuffix("\n")
        llm = LLM(str(folder), quantization=quantization, num_kv_blocks=16)
        assert texts[quantization] == llm.generate(PROMPT, PARAMS)[0].outputs[0].text
    assert len(set(texts.values())) == 3
