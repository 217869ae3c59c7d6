"""Fetch a model's files and print where they are.

What is there already is not fetched again.

examples:
  pyengine pull smollm2-135m-instruct
  pyengine pull HuggingFaceTB/SmolLM2-360M-Instruct
"""

import argparse

USAGE = "MODEL [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--revision", metavar="TEXT", help="branch, tag or commit of a hub name")


def run(args: argparse.Namespace) -> int:
    from pyengine.weights import resolve_model

    print(resolve_model(args.model, revision=args.revision))
    return 0
