"""Which class serves which architecture."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pyengine.config import Quantization
from pyengine.errors import ModelLoadError
from pyengine.models.config import ModelConfig
from pyengine.models.layers import AttentionInputs, KVCache
from pyengine.models.llama import LlamaForCausalLM
from pyengine.models.weight_reader import TensorSource, WeightReader


class CausalLM(Protocol):
    """What a model family offers to the model runner."""

    config: ModelConfig

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, hidden], what the layers start from, for token_ids int64 [T]."""

    def forward(
        self,
        embeddings: Tensor,
        inputs: AttentionInputs,
        cache: KVCache,
        num_logits: list[int] | None = None,
    ) -> Tensor:
        """Hidden states after embeddings [T, hidden], which are overwritten: of the last
        num_logits[s] of each sequence's or of all [T, hidden]; writes the K/V of all."""

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocab] for hidden states [R, hidden]."""


CPU = torch.device("cpu")

_FAMILIES: dict[str, Callable[[ModelConfig, WeightReader, int], CausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": LlamaForCausalLM,
}


def load_model(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    max_model_len: int,
    *,
    device: torch.device = CPU,
    exact: bool = True,
    quantization: Quantization = "auto",
    show_progress: bool = False,
) -> CausalLM:
    """Builds the model that `config` names and reads its weights as `dtype`, or as quantized as
    they are, on the device.

    Raises:
        ModelLoadError: the architecture isn't supported, or a tensor is missing or misshapen.
    """
    family = _FAMILIES.get(config.architecture)
    if family is None:
        raise ModelLoadError(
            f"the architecture {config.architecture!r} is not supported; "
            f"supported are {', '.join(sorted(_FAMILIES))}"
        )
    with WeightReader(
        source,
        dtype,
        device=device,
        exact=exact,
        quantization=quantization,
        show_progress=show_progress,
    ) as weights:
        return family(config, weights, max_model_len)
