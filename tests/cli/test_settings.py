"""Options come from flags, the environment and a file, in this order."""

import logging
from pathlib import Path
from typing import Any

import pytest

from pyengine.cli import main
from pyengine.cli.options import Setting, UsageError
from pyengine.cli.settings import read_settings
from pyengine.config import EngineConfig
from pyengine.server import serve as server
from pyengine.server.options import ServerOptions

CLASSES = (ServerOptions, EngineConfig)


def values(path: Path | None = None, **environ: str) -> dict[str, object]:
    settings = read_settings(
        CLASSES, None if path is None else str(path), environ, exclude=("model",)
    )
    return {name: setting.value for name, setting in settings.items()}


def write(folder: Path, text: str) -> Path:
    path = folder / "options.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerOptions]:
    made: list[ServerOptions] = []

    def run(load_engine: object, options: ServerOptions, on_ready: object) -> int:
        made.append(options)
        return 0

    monkeypatch.setattr(server, "run", run)
    return made


def test_a_file_holds_options_of_the_server_and_of_the_engine(tmp_path: Path) -> None:
    text = """
        port: 81
        served-model-name: [a, b]
        api_key: secret
        max_num_seqs: 3
        kv_cache_bytes: 2GiB
        target_itl_ms: 5
        enable-prefix-caching: false
        quantization: int8
        num_threads: null
    """
    assert values(write(tmp_path, text)) == {
        "port": 81,
        "served_model_names": ("a", "b"),
        "api_keys": ("secret",),
        "max_num_seqs": 3,
        "kv_cache_bytes": 2 << 30,
        "target_itl_ms": 5.0,
        "enable_prefix_caching": False,
        "quantization": "int8",
        "num_threads": None,
    }


def test_the_environment_holds_the_same() -> None:
    assert values(
        PYENGINE_PORT="81",
        PYENGINE_SERVED_MODEL_NAME="a,b",
        PYENGINE_API_KEY="secret",
        PYENGINE_MAX_MODEL_LEN="100",
        PYENGINE_KV_CACHE_BYTES="2GiB",
        PYENGINE_ENABLE_PREFIX_CACHING="false",
        PYENGINE_TARGET_ITL_MS="5",
        PYENGINE_DTYPE="float32",
        PYENGINE_CACHE="/somewhere",  # no option
    ) == {
        "port": 81,
        "served_model_names": ("a", "b"),
        "api_keys": ("secret",),
        "max_model_len": 100,
        "kv_cache_bytes": 2 << 30,
        "enable_prefix_caching": False,
        "target_itl_ms": 5.0,
        "dtype": "float32",
    }


def test_flags_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, served: list[ServerOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "port: 1\nhost: file\nshutdown_timeout: 1\n")
    monkeypatch.setenv("PYENGINE_PORT", "2")
    monkeypatch.setenv("PYENGINE_HOST", "environment")
    assert main(["serve", "m", "--config", str(path), "--port", "3"]) == 0
    [options] = served
    assert (options.port, options.host, options.shutdown_timeout) == (3, "environment", 1.0)
    assert options.health_timeout == ServerOptions.health_timeout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 81", "options.yaml: prot is no option"),
        ("model: m\nport: x", "options.yaml: model is no option"),
        ("port: x", "options.yaml: port must be an integer"),
        ("port: 8.5", "options.yaml: port must be an integer"),
        ("port: true", "options.yaml: port must be an integer"),
        ("dtype: float64", "options.yaml: dtype must be one of auto, float32, bfloat16"),
        ("host: 3", "options.yaml: host must be a string"),
        ("target_itl_ms: fast", "options.yaml: target_itl_ms must be a number"),
        ("enable_prefix_caching: 1", "options.yaml: enable_prefix_caching must be true or false"),
        ("api_key: [1]", "options.yaml: api_key must be a string or a list of strings"),
        ("block_size: null", "options.yaml: block_size must be an integer"),
        ("kv_cache_bytes: 1.5G", "options.yaml: kv_cache_bytes: expected bytes such as"),
        ("- port", "must hold options, each as name: value"),
        ("a: [", "can't be read"),
        ("port: 99999", "options.yaml: port must be in 0..65535, got 99999"),
        ("max_num_seqs: 0", "options.yaml: max_num_seqs must be at least 1, got 0"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_by_name(
    tmp_path: Path,
    served: list[ServerOptions],
    capsys: pytest.CaptureFixture[str],
    text: str,
    message: str,
) -> None:
    assert main(["serve", "m", "--config", str(write(tmp_path, text))]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("pyengine: error: ")
    assert message in line
    assert served == []


def test_what_is_wrong_in_the_environment_is_told_by_name_and_without_the_value() -> None:
    with pytest.raises(UsageError, match=r"^PYENGINE_PORT must be an integer") as caught:
        values(PYENGINE_PORT="secret")
    assert "secret" not in str(caught.value)


def test_a_missing_file_is_told(served: list[ServerOptions], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml can't be read"):
        values(tmp_path / "nowhere.yaml")


def test_a_setting_tells_where_it_is_from(tmp_path: Path) -> None:
    path = write(tmp_path, "port: 81")
    settings = read_settings(CLASSES, str(path), {}, exclude=("model",))
    assert settings == {"port": Setting(81, f"{path}: port")}


def test_keys_come_from_a_file_too_and_are_not_printed(
    tmp_path: Path,
    served: list[ServerOptions],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "keys"
    path.write_text("secret-2\n\n secret-3 \n")
    monkeypatch.setenv("PYENGINE_MAX_NUM_SEQS", "5")
    with caplog.at_level(logging.INFO, "pyengine"):
        argv = ["serve", "m", "--api-key", "secret-1", "--api-key-file", str(path)]
        assert main([*argv, "--port", "81"]) == 0
    assert served[0].api_keys == ("secret-1", "secret-2", "secret-3")
    assert "secret" not in caplog.text
    assert "port=81" in caplog.text
    assert "max_num_seqs=5" in caplog.text


@pytest.mark.parametrize(("text", "message"), [("", "holds no key"), (None, "can't be read")])
def test_a_key_file_without_keys_is_refused(
    tmp_path: Path,
    served: list[ServerOptions],
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    message: str,
) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    assert main(["serve", "m", "--api-key-file", str(path)]) == 2
    assert f"--api-key-file {message}" in capsys.readouterr().err


def test_every_option_can_be_set_by_its_flag_in_the_environment(tmp_path: Path) -> None:
    names: dict[str, Any] = {"PYENGINE_UDS": "/run/x", "PYENGINE_ALLOWED_ORIGIN": "https://a,*"}
    assert values(**names) == {"uds": "/run/x", "allowed_origins": ("https://a", "*")}
