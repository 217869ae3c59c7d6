"""Serve a model over the OpenAI API.

SIGTERM and Ctrl-C refuse new requests, let running ones finish, and end the server.

examples:
  pyengine serve smollm2-135m-instruct
  pyengine serve HuggingFaceTB/SmolLM2-360M-Instruct --host 0.0.0.0 --port 8080
  pyengine serve ./my-model.gguf --served-model-name my-model --max-num-seqs 128
"""

import argparse
import gc
import json
import logging
import os
import shlex

from pyengine.cli.options import add_options, build
from pyengine.cli.settings import read_settings
from pyengine.config import EngineConfig
from pyengine.server.options import ServerOptions

logger = logging.getLogger(__name__)

USAGE = "MODEL [options]"
QUESTION = "What is the capital of Japan?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a YAML file with any of the options below, as name: value; flags go before "
        "PYENGINE_NAME in the environment, and these before the file",
    )
    add_options(parser, "server", ServerOptions, defaults={"served_model_names": "MODEL as given"})
    add_options(parser, "engine", EngineConfig, exclude=("model",))


def run(args: argparse.Namespace) -> int:
    classes = (ServerOptions, EngineConfig)
    settings = read_settings(classes, args.config, os.environ, exclude=("model",))
    config = build(EngineConfig, args, settings=settings)
    options = build(ServerOptions, args, {"served_model_names": (args.model,)}, settings)

    # What is made until the server is ready is kept for good. Looking for garbage in these hundred
    # thousands of objects would only cost time: at the start, and again and again in mid-stream.
    gc.disable()
    try:
        return _serve(config, options)
    finally:
        gc.enable()


def _serve(config: EngineConfig, options: ServerOptions) -> int:
    from pyengine.engine import AsyncEngine, Engine
    from pyengine.server.serve import run as run_server

    # Our own news only: the libraries speak when something is wrong.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pyengine").setLevel(logging.INFO)

    logger.info("%s", options)
    logger.info("%s", config)

    def load_engine() -> AsyncEngine:
        engine = Engine.from_config(config, show_progress=True)
        engine.prepare_grammars()
        logger.info("%s", engine.describe())
        return AsyncEngine(engine)

    def on_ready(url: str) -> None:
        gc.freeze()
        gc.enable()
        print(_greeting(url, options), flush=True)

    return run_server(load_engine, options, on_ready)


def _greeting(url: str, options: ServerOptions) -> str:
    model = options.served_model_names[0]
    headers = "-H 'Content-Type: application/json'"
    if options.api_keys:
        headers += ' -H "Authorization: Bearer $PYENGINE_API_KEY"'
    to_socket = "" if options.uds is None else f"--unix-socket {shlex.quote(options.uds)} "
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 64,
            "temperature": 0,
        }
    )
    return f"""\
{model} is served on {url}/v1 (metrics on {url}/metrics). Try:

curl {to_socket}{url}/v1/chat/completions {headers} -d {shlex.quote(body)}
"""
