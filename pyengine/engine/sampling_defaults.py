"""How a model's makers want its tokens chosen: generation_config.json."""

from pathlib import Path
from typing import Any

from pyengine.errors import InvalidRequestError, ModelLoadError
from pyengine.sampling_params import SamplingParams
from pyengine.weights.files import read_json_if_there

# Fields of the file that SamplingParams has by the same name. What limits an answer's length
# (max_length, max_new_tokens) is left to requests; ends of an answer come with the tokenizer.
_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def read_sampling_defaults(path: Path) -> dict[str, Any]:
    """The fields of SamplingParams that the file in a model's folder gives, with its values; none
    for a .gguf file.

    Raises:
        ModelLoadError: the file is broken, or a value out of range.
    """
    if path.is_file():
        return {}
    config_path = path / "generation_config.json"
    config = read_json_if_there(config_path)
    defaults = {name: config[name] for name in _FIELDS if config.get(name) is not None}
    try:
        SamplingParams(**defaults)
    except (InvalidRequestError, TypeError) as error:
        raise ModelLoadError(f"{config_path}: {error}") from error
    return defaults
