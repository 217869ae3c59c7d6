"""Hugging Face folders: config.json and weights in safetensors files, whole or in shards."""

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pyengine.errors import ModelLoadError
from pyengine.weights.checkpoint import Checkpoint
from pyengine.weights.files import read_json, read_json_if_there

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class SafetensorsCheckpoint(Checkpoint):
    """A folder as `save_pretrained` of transformers writes it, or as it lies on the Hub."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not (path / "config.json").exists():
            raise ModelLoadError(_why_no_config(path))
        self.config = read_json(path / "config.json")
        self.generation_config = read_json_if_there(path / "generation_config.json")
        quantization = self.config.get("quantization_config")
        if quantization:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else "?"
            raise ModelLoadError(
                f"{path}: weights quantized with {method} aren't supported; "
                "take the model's original weights or a GGUF file"
            )
        if (path / _INDEX).exists():
            places = _read_index(path / _INDEX)
        elif (path / _WEIGHTS).exists():
            places = None
        else:
            raise ModelLoadError(_why_no_weights(path))
        shards = [_WEIGHTS] if places is None else dict.fromkeys(places.values())
        self._shards = {shard: _open(path / shard) for shard in shards}
        found: dict[str, str] = {}
        for shard, file in self._shards.items():
            found.update(dict.fromkeys(file.keys(), shard))
        for name, shard in (places or {}).items():
            if found.get(name) != shard:
                raise ModelLoadError(
                    f"{path}: tensor {name} is missing in {shard}, where {_INDEX} places it"
                )
        self._places = found if places is None else places

    def names(self) -> list[str]:
        return list(self._places)

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        shard = self._places.get(name)
        if shard is None:
            raise ModelLoadError(f"{self._path}: there is no tensor {name}")
        tensor: torch.Tensor = self._shards[shard].get_tensor(name)
        if tensor.dtype not in _FLOATS:
            raise ModelLoadError(
                f"{self._path / shard}: tensor {name} has the type {tensor.dtype}, "
                f"which isn't supported; the supported types are {', '.join(map(str, _FLOATS))}"
            )
        # Copied even if nothing changes: the file may be replaced while the model is in use.
        return tensor.to(dtype, copy=True)

    def _contents(self) -> Iterator[mmap.mmap]:
        for shard in sorted(self._shards):
            with (self._path / shard).open("rb") as file:
                yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read_index(path: Path) -> dict[str, str]:
    """-> tensor name -> shard's file name."""
    places = read_json(path).get("weight_map")
    if not isinstance(places, dict) or not places or not _are_file_names(places.values()):
        raise ModelLoadError(
            f"{path}: weight_map must map the tensors' names to files of this folder"
        )
    return places


def _are_file_names(values: Iterable[Any]) -> bool:
    """Whether these are names in the folder itself: an index must not point elsewhere."""
    return all(isinstance(value, str) and Path(value).name == value for value in values)


def _open(path: Path) -> Any:
    """Maps a file and reads its header; the library has no types."""
    if not path.exists():
        raise ModelLoadError(f"{path.parent}: the shard {path.name} is missing")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"{path}: broken or incomplete safetensors file: {error}; fetch it again"
        ) from error


def _why_no_config(path: Path) -> str:
    if gguf_files := sorted(file.name for file in path.glob("*.gguf")):
        return f"{path}: name the GGUF file itself: it holds {', '.join(gguf_files)}"
    return (
        f"{path}: there is no config.json; a model's folder holds config.json, its tokenizer's "
        "files and *.safetensors, or name a .gguf file"
    )


def _why_no_weights(path: Path) -> str:
    if any(path.glob("*.bin")) or any(path.glob("*.pt*")):
        return (
            f"{path}: the weights are PyTorch pickles, which can run code when they are loaded, so "
            "pyengine doesn't load them; convert them to safetensors, or take a revision of the "
            "model that has it"
        )
    return f"{path}: there are no weights (neither {_WEIGHTS} nor {_INDEX})"
