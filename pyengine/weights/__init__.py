"""Where a model's files come from, and what is in them.

path = resolve_model("smollm2-135m-instruct")
checkpoint = open_checkpoint(path)
weight = checkpoint.load("model.norm.weight", torch.bfloat16)
"""

from pyengine.weights.checkpoint import Checkpoint, open_checkpoint
from pyengine.weights.resolve import resolve_model

__all__ = ["Checkpoint", "open_checkpoint", "resolve_model"]
