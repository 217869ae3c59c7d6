"""Hugging Face folders: whole, in shards, and broken in every way that users meet."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pyengine.errors import ModelLoadError
from pyengine.weights import open_checkpoint

TENSORS = {
    "model.norm.weight": torch.tensor([1.0, -2.5, 3.25]),
    "model.embed_tokens.weight": torch.arange(6.0).view(2, 3).to(torch.bfloat16),
    "lm_head.weight": torch.full((2, 3), 0.1, dtype=torch.float16),
}
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
PLACES = dict(zip(TENSORS, [SHARDS[0], SHARDS[0], SHARDS[1]], strict=True))


def write_config(folder: Path, **config: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"hidden_size": 3, **config}))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    write_config(tmp_path)
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    write_config(tmp_path)
    for shard in SHARDS:
        names = [name for name, place in PLACES.items() if place == shard]
        save_file({name: TENSORS[name] for name in names}, tmp_path / shard)
    write_index(tmp_path, PLACES)
    return tmp_path


def write_index(folder: Path, places: object) -> None:
    index = {"metadata": {"total_size": 36}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def refuses(path: Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        open_checkpoint(path)


@pytest.mark.parametrize("kind", ["whole", "sharded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_loaded_as_the_type_asked_for(
    kind: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    checkpoint = open_checkpoint(request.getfixturevalue(kind))
    assert sorted(checkpoint.names()) == sorted(TENSORS)
    for name, expected in TENSORS.items():
        loaded = checkpoint.load(name, dtype)
        assert (loaded.dtype, loaded.is_contiguous()) == (dtype, True)
        assert torch.equal(loaded, expected.to(dtype))


def test_both_configurations_are_read(whole: Path) -> None:
    assert open_checkpoint(whole).config == {"hidden_size": 3}
    assert open_checkpoint(whole).generation_config == {}
    (whole / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert open_checkpoint(whole).generation_config == {"eos_token_id": [1, 2]}


def test_loaded_tensors_do_not_change_with_the_file(whole: Path) -> None:
    weight = open_checkpoint(whole).load("model.norm.weight", torch.float32)
    path = whole / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert torch.equal(weight, TENSORS["model.norm.weight"])


def test_the_digest_is_that_of_configuration_and_tensors(whole: Path) -> None:
    first = open_checkpoint(whole).digest()
    moved = whole.rename(whole.with_name("moved"))
    assert open_checkpoint(moved).digest() == first
    (moved / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert open_checkpoint(moved).digest() == first
    changed = {name: tensor.clone() for name, tensor in TENSORS.items()}
    changed["model.norm.weight"][-1] += 1
    save_file(changed, moved / "model.safetensors")
    assert open_checkpoint(moved).digest() != first


def test_a_tensor_that_is_not_there_is_an_error(whole: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"there is no tensor model\.bias"):
        open_checkpoint(whole).load("model.bias", torch.float32)


def test_a_tensor_of_an_unsupported_type_is_an_error(whole: Path) -> None:
    save_file({"packed": torch.zeros(3, dtype=torch.int32)}, whole / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"tensor packed has the type torch\.int32, which"):
        open_checkpoint(whole).load("packed", torch.float32)


def test_quantized_weights_are_refused(whole: Path) -> None:
    write_config(whole, quantization_config={"quant_method": "gptq", "bits": 4})
    refuses(whole, "weights quantized with gptq aren't supported; take the model's original")
    write_config(whole, quantization_config="gptq")
    refuses(whole, r"weights quantized with \? aren't supported")


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    refuses(tmp_path, r"there is no config\.json")
    (tmp_path / "config.json").write_text('{"hidden_size": ')
    refuses(tmp_path, r"config\.json: broken JSON: .*line 1")
    (tmp_path / "config.json").write_text("[1]")
    refuses(tmp_path, r"config\.json: expected a JSON object, got list")
    (tmp_path / "config.json").write_bytes(b'{"\xff": 1}')
    refuses(tmp_path, r"config\.json: can't be read: .*utf-8")


def test_a_folder_around_gguf_files_names_them(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf", "notes.txt"):
        (tmp_path / name).touch()
    refuses(tmp_path, r"name the GGUF file itself: it holds a\.gguf, b\.gguf$")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    refuses(tmp_path, r"neither model\.safetensors nor model\.safetensors\.index\.json")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    write_config(tmp_path)
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    refuses(tmp_path, "PyTorch pickles, which can run code .* convert them to safetensors")


@pytest.mark.parametrize("length", [0, 4, 20, -1])
def test_a_truncated_file_is_refused(whole: Path, length: int) -> None:
    path = whole / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    refuses(whole, r"model\.safetensors: broken or incomplete safetensors file: .*fetch it again")


def test_a_missing_shard_is_refused_by_name(sharded: Path) -> None:
    (sharded / SHARDS[1]).unlink()
    refuses(sharded, f"the shard {SHARDS[1]} is missing")


def test_a_tensor_missing_in_its_shard_is_refused_by_name(sharded: Path) -> None:
    write_index(sharded, {**PLACES, "lm_head.weight": SHARDS[0]})
    refuses(sharded, rf"tensor lm_head\.weight is missing in {SHARDS[0]}")


@pytest.mark.parametrize("places", [None, {}, {"a": 1}, {"a": "../other/model.safetensors"}])
def test_a_broken_index_is_refused(sharded: Path, places: object) -> None:
    write_index(sharded, places)
    refuses(sharded, "weight_map must map the tensors' names to files of this folder")
