"""The server's options. Imports nothing heavy, as `pyengine serve --help` needs them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of the HTTP server, checked once.

    Args:
        served_model_names: what clients may call the model; answers use the first by default.
        host: the address to listen on.
        port: 0 takes a free one.
        shutdown_timeout: how long running requests may go on after SIGTERM, in seconds.
        health_timeout: /health turns to 503 when requests are open and no step of the engine has
            ended for so long, in seconds.
        max_body_bytes: a longer request body is refused with 413.
        body_timeout: how long a request body may take to come, in seconds; then it is refused with
            408.
        ignore_unknown_fields: take requests with fields that are unknown here, leaving these out;
            each is logged once.
    """

    served_model_names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_timeout: float = 30.0
    health_timeout: float = 60.0
    max_body_bytes: int = 32 * 2**20
    body_timeout: float = 60.0
    ignore_unknown_fields: bool = False

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
