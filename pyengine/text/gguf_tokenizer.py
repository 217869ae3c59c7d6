"""The tokenizers inside GGUF files."""

from pathlib import Path

from pyengine.errors import ModelLoadError
from pyengine.text.tokenizer import Tokenizer
from pyengine.weights.gguf_file import GGUFFile


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer that a GGUF file carries.

    Raises:
        ModelLoadError: the file is broken or its tokenizer isn't supported.
    """
    file = GGUFFile(path)
    kind = file.require("tokenizer.ggml.model", str)
    # Here, so that each kind's library is imported only where it is needed.
    if kind == "gpt2":
        from pyengine.text.gguf_bpe import load_gguf_bpe

        return load_gguf_bpe(file)
    if kind == "llama":
        from pyengine.text.gguf_sentencepiece import load_gguf_sentencepiece

        return load_gguf_sentencepiece(file)
    raise ModelLoadError(f"{path}: the tokenizer {kind!r} isn't supported, only 'gpt2' and 'llama'")
