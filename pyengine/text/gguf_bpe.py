"""Byte-level BPE out of GGUF files."""

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from pyengine.errors import ModelLoadError
from pyengine.text import byte_level
from pyengine.text.backend_tokenizer import BackendTokenizer
from pyengine.text.gguf_vocabulary import gguf_vocabulary, token_types
from pyengine.text.sentencepiece_model import CONTROL, USER_DEFINED
from pyengine.text.tokenizer import Tokenizer
from pyengine.weights.gguf_file import GGUFFile

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# tokenizer.ggml.pre -> the patterns that cut a text, one after the other, into the pieces that are
# then split into tokens. The names are llama.cpp's, the patterns those of the models' authors.
_PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "llama-bpe": [_LLAMA3],
    "qwen2": [_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")],
}

# Pre-tokenizers whose models take a piece that is a token as it is, without merging; begin texts
# with a special token if the file doesn't say; compose accents with their letters first.
_WHOLE_TOKENS_FIRST = {"llama-bpe"}
_BOS_BY_DEFAULT = {"llama-bpe"}
_COMPOSED = {"qwen2"}


def load_gguf_bpe(file: GGUFFile) -> Tokenizer:
    """A vocabulary of byte-level BPE ("gpt2").

    Raises:
        ModelLoadError: it is broken, or cuts texts in a way that isn't supported.
    """
    pre = file.get("tokenizer.ggml.pre", str, "default")
    if pre not in _PATTERNS:
        raise ModelLoadError(
            f"{file.path}: the pre-tokenizer {pre!r} isn't supported, only "
            + ", ".join(map(repr, _PATTERNS))
        )
    tokens = file.require_list("tokenizer.ggml.tokens", str)
    merges = [
        (left, right)
        for left, _, right in (
            merge.partition(" ") for merge in file.require_list("tokenizer.ggml.merges", str)
        )
    ]
    try:
        model = models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=pre in _WHOLE_TOKENS_FIRST,
        )
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"{file.path}: broken vocabulary: {error}") from error
    backend = tokenizers.Tokenizer(model)
    if pre in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    types = token_types(file, len(tokens))
    added = {i: tokens[i] for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)}
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=types[token_id] == CONTROL)
            for token_id, token in added.items()
        ]
    )
    token_bytes = [byte_level.to_bytes(token) for token in tokens]
    for token_id, token in added.items():
        token_bytes[token_id] = token.encode()
    vocabulary = gguf_vocabulary(
        file, token_bytes, types, add_bos=pre in _BOS_BY_DEFAULT, has_space_prefix=False
    )
    return BackendTokenizer(backend, vocabulary)
