"""Model families: what computes hidden states and logits. They know no request."""

from pyengine.models.config import ModelConfig
from pyengine.models.registry import load_model

__all__ = ["ModelConfig", "load_model"]
