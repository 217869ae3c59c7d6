"""Models from the Hub: a fake one, in processes of their own, as its library reads the environment
when it is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyengine.weights.hub import is_hub_name
from tests.weights.fake_hub import FakeHub

SCRIPT = """
import json, sys
from pyengine.errors import ModelLoadError
from pyengine.weights import resolve_model

for name, revision in json.loads(sys.argv[1]):
    try:
        print(json.dumps(["path", str(resolve_model(name, revision=revision))]))
    except ModelLoadError as error:
        print(json.dumps(["error", str(error)]))
"""

MODELS = {
    "owner/model": {
        "config.json": b"{ }",
        "model.safetensors": b"weights",
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"template",
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"weights again",
        "onnx/config.json": b"{}",
        "README.md": b"words",
    },
    "owner/model-GGUF": {"model.Q4_0.gguf": b"GGUF", "README.md": b"words"},
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(MODELS, gated={"owner/gated"}) as server:
        yield server


def resolve(
    folder: Path, names: list[tuple[str, str | None]], endpoint: str, **environment: str
) -> list[tuple[str, str]]:
    """-> for each name ("path", path) or ("error", message)."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(names)],
        env={
            **kept,
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **environment,
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(json.loads(line)) for line in result.stdout.splitlines()]


def test_a_model_is_fetched_once_without_what_it_does_not_need(
    tmp_path: Path, hub: FakeHub
) -> None:
    first, second = resolve(tmp_path, [("owner/model", None), ("owner/model", None)], hub.endpoint)
    assert first == second
    assert first[0] == "path"
    expected = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(hub.fetched) == expected
    assert sorted(os.listdir(first[1])) == expected


def test_one_gguf_file_of_a_model_is_fetched(tmp_path: Path, hub: FakeHub) -> None:
    name = "owner/model-GGUF:model.Q4_0.gguf"
    ((kind, path),) = resolve(tmp_path, [(name, None)], hub.endpoint)
    assert kind == "path"
    assert Path(path).name == "model.Q4_0.gguf"
    assert Path(path).read_bytes() == b"GGUF"


def test_the_cache_serves_offline(tmp_path: Path, hub: FakeHub) -> None:
    (online,) = resolve(tmp_path, [("owner/model", None)], hub.endpoint)
    unreachable = "http://127.0.0.1:9"
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        (offline,) = resolve(tmp_path, [("owner/model", None)], unreachable, **environment)
        assert offline == online


def test_a_hub_out_of_reach_is_an_error_that_says_so(tmp_path: Path) -> None:
    model, file = ("owner/model", None), ("owner/model-GGUF:model.Q4_0.gguf", None)
    nowhere = "http://127.0.0.1:9"
    results = resolve(tmp_path, [model], nowhere)
    results += resolve(tmp_path, [model, file], nowhere, HF_HUB_OFFLINE="1")
    for kind, message in results:
        assert kind == "error"
        assert "the Hub can't be reached (or HF_HUB_OFFLINE is set)" in message
        assert "check the network" in message


def test_what_the_hub_does_not_give_is_an_error_that_says_what_to_do(
    tmp_path: Path, hub: FakeHub
) -> None:
    answers = {
        ("owner/nothing", None): "nor such a model on the Hub; if it is private, run `hf auth",
        ("owner/gated", None): "ask for an agreement first: give it on the model's page",
        ("owner/model", "v2"): "owner/model: the model on the Hub has no revision v2",
        ("owner/model:none.gguf", None): "owner/model: the model on the Hub has no file none.gguf",
        ("owner/model-GGUF", None): "name one, as in owner/model-GGUF:FILE.gguf",
        ("owner//model", None): "no such file or folder; a model is a folder, a .gguf file",
        ("no.gguf", None): "'no.gguf': no such file or folder",
        ("", None): "'': no such file or folder",
    }
    results = resolve(tmp_path, list(answers), hub.endpoint)
    for (kind, message), expected in zip(results, answers.values(), strict=True):
        assert kind == "error"
        assert expected in message


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("gpt2", True),
        ("owner/name-1.5_x", True),
        ("owner/name:file.gguf", True),
        ("owner/name:folder/file.gguf", True),
        ("owner/name:file.bin", False),
        ("./folder", False),
        ("/folder/name", False),
        ("a/b/c", False),
        ("../name", False),
        ("model.gguf", False),
        ("folder/model.gguf", False),
        ("", False),
    ],
)
def test_names_on_the_hub_are_told_from_paths(name: str, holds: bool) -> None:
    assert is_hub_name(name) is holds
