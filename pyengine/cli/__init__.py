"""The command `pyengine`: serve, generate, chat, pull and bench a model."""

from pyengine.cli.main import main

__all__ = ["main"]
