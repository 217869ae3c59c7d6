"""The server's options. Imports nothing heavy, as `pyengine serve --help` needs them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of the HTTP server, checked once.

    Args:
        served_model_names: what clients may call the model; answers use the first by default.
        host: the address to listen on.
        port: 0 takes a free one.
        uds: a path for a Unix socket to listen on, in place of host and port.
        ssl_certfile: the certificate chain of HTTPS, in PEM; None serves HTTP.
        ssl_keyfile: its private key, in PEM; None if ssl_certfile holds it too.
        api_keys: clients must send one of them; none by default, and anyone may ask.
        api_key_file: a file with further keys, one a line.
        allowed_origins: of the pages whose scripts may use the server, such as
            https://example.org; "*" allows all.
        shutdown_timeout: how long running requests may go on after SIGTERM, in seconds. The process
            ends up to 5 s later if a client doesn't read what it was still sent.
        health_timeout: /health turns to 503 when requests are open and no step of the engine has
            ended for so long, in seconds.
        max_body_bytes: a longer request body is refused with 413. To parse one of token ids holds
            up all streams for some 25 ms a MiB.
        body_timeout: how long a request body may take to come, in seconds; then it is refused with
            408.
        ignore_unknown_fields: take requests with fields that are unknown here, leaving these out;
            each is logged once. Fields known as unsupported are refused all the same.
        generation_config: where requests have the defaults of sampling from: "auto" for the
            model's generation_config.json, where it has one, then OpenAI's; "none" for OpenAI's.
        tool_call_parser: how the model writes calls of tools: "auto" asks its chat template.
    """

    served_model_names: tuple[str, ...] = field(metadata={"flag": "served_model_name"})
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    # Kept out of what is printed of the options.
    api_keys: tuple[str, ...] = field(default=(), metadata={"flag": "api_key"}, repr=False)
    api_key_file: str | None = None
    allowed_origins: tuple[str, ...] = field(default=(), metadata={"flag": "allowed_origin"})
    shutdown_timeout: float = 30.0
    health_timeout: float = 60.0
    max_body_bytes: int = 8 * 2**20
    body_timeout: float = 60.0
    ignore_unknown_fields: bool = False
    generation_config: Literal["auto", "none"] = "auto"
    tool_call_parser: Literal["auto", "hermes", "llama3", "mistral"] = "auto"

    def __post_init__(self) -> None:
        if not self.served_model_names:
            raise ValueError("served_model_names must hold at least one name")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be in 0..65535, got {self.port}")
        if not self.shutdown_timeout >= 0:  # not a number fails too
            raise ValueError(f"shutdown_timeout must be at least 0, got {self.shutdown_timeout}")
        if not self.health_timeout > 0:
            raise ValueError(f"health_timeout must be above 0, got {self.health_timeout}")
        if not self.body_timeout > 0:
            raise ValueError(f"body_timeout must be above 0, got {self.body_timeout}")
        if self.max_body_bytes < 1:
            raise ValueError(f"max_body_bytes must be at least 1, got {self.max_body_bytes}")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        if self.api_key_file is not None:
            keys = (*self.api_keys, *_read_keys(self.api_key_file))
            object.__setattr__(self, "api_keys", keys)
        if not all(key and key == key.strip() and key.isprintable() for key in self.api_keys):
            raise ValueError("api_keys must not be empty, nor hold blanks at their ends")


def _read_keys(path: str) -> list[str]:
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"api_key_file can't be read: {error}") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ValueError(f"api_key_file holds no key: {path}")
    return keys
