"""The defaults of requests: what the model's makers say, then what OpenAI says."""

import json
from pathlib import Path

import pytest

from pyengine.engine.sampling_defaults import read_sampling_defaults
from pyengine.errors import ModelLoadError
from tests.server.conftest import StartServer
from tests.server.fakes import FakeAsyncEngine

INPUTS = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}
DEFAULTS = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}


@pytest.mark.parametrize("path", INPUTS)
@pytest.mark.parametrize("generation_config", ["auto", "none"])
async def test_requests_have_the_models_defaults_unless_the_server_is_told_otherwise(
    start_server: StartServer, path: str, generation_config: str
) -> None:
    engine = FakeAsyncEngine()
    engine.sampling_defaults = DEFAULTS
    server = await start_server(engine, generation_config=generation_config)
    for fields in ({}, {"temperature": 0.1, "top_k": None}):
        assert (await server.post(path, {**INPUTS[path], **fields}))[0] == 200
    first, second = (request.params for request in engine.requests)
    is_auto = generation_config == "auto"
    expected = (0.6, 20, 1) if is_auto else (1, 0, 1)
    assert (first.temperature, first.top_k, first.top_p) == expected
    assert (second.temperature, second.top_k) == (0.1, 20 if is_auto else 0)
    assert second.repetition_penalty == (1.05 if is_auto else 1)


def test_what_generation_config_says_of_sampling_is_read(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == {}
    config = {**DEFAULTS, "top_p": None, "do_sample": True, "max_new_tokens": 7, "eos_token_id": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert read_sampling_defaults(tmp_path) == DEFAULTS


@pytest.mark.parametrize("value", [-1, "hot"])
def test_values_that_make_no_sense_are_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": value}))
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: "):
        read_sampling_defaults(tmp_path)


def test_gguf_files_have_none(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert read_sampling_defaults(file) == {}
