"""The tokenizers inside GGUF files."""

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers

from pyengine.errors import ModelLoadError
from pyengine.text import byte_level
from pyengine.text.backend_tokenizer import BackendTokenizer
from pyengine.text.tokenizer import Tokenizer, Vocabulary
from pyengine.weights.gguf_config import eos_token_ids
from pyengine.weights.gguf_file import GGUFFile

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

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

# Pre-tokenizers whose models take a piece that is a token as it is, without merging, and begin
# texts with a token.
_WHOLE_TOKENS_FIRST = {"llama-bpe"}
_BOS_BY_DEFAULT = {"llama-bpe"}


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer that a GGUF file carries.

    Raises:
        ModelLoadError: the file is broken or its tokenizer isn't supported.
    """
    file = GGUFFile(path)
    kind = file.require("tokenizer.ggml.model", str)
    if kind == "gpt2":
        return _load_byte_level_bpe(file)
    raise ModelLoadError(f"{path}: the tokenizer {kind!r} isn't supported, only 'gpt2' and 'llama'")


def _load_byte_level_bpe(file: GGUFFile) -> Tokenizer:
    pre = file.get("tokenizer.ggml.pre", str, "default")
    if pre not in _PATTERNS:
        raise ModelLoadError(
            f"{file.path}: the pre-tokenizer {pre!r} isn't supported, only "
            + ", ".join(map(repr, _PATTERNS))
        )
    tokens = file.require("tokenizer.ggml.tokens", list)
    merges = [tuple(merge.split(" ", 1)) for merge in file.require("tokenizer.ggml.merges", list)]
    try:
        model = models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=pre in _WHOLE_TOKENS_FIRST,
        )
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"{file.path}: broken vocabulary: {error}") from error
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    types = _token_types(file, len(tokens))
    added = {i: tokens[i] for i, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED)}
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=types[token_id] == _CONTROL)
            for token_id, token in added.items()
        ]
    )
    token_bytes = [byte_level.to_bytes(token) for token in tokens]
    for token_id, token in added.items():
        token_bytes[token_id] = token.encode()
    vocabulary = _vocabulary(
        file, token_bytes, types, add_bos=pre in _BOS_BY_DEFAULT, has_space_prefix=False
    )
    return BackendTokenizer(backend, vocabulary)


def _token_types(file: GGUFFile, num_tokens: int) -> list[int]:
    types = file.get("tokenizer.ggml.token_type", list)
    if types is None:
        return [1] * num_tokens
    if len(types) != num_tokens:
        raise ModelLoadError(
            f"{file.path}: broken vocabulary: {num_tokens} tokens, but {len(types)} token types"
        )
    return types


def _vocabulary(
    file: GGUFFile,
    token_bytes: list[bytes],
    types: list[int],
    *,
    add_bos: bool,
    has_space_prefix: bool,
) -> Vocabulary:
    """
    Args:
        add_bos: whether texts begin with a token if the file doesn't say.
    """
    bos_id = file.get("tokenizer.ggml.bos_token_id", int)
    eos_id = file.get("tokenizer.ggml.eos_token_id", int)
    eos_ids = eos_token_ids(file)
    for token_id in (bos_id, *eos_ids):
        if token_id is not None and token_id >= len(token_bytes):
            raise ModelLoadError(
                f"{file.path}: broken vocabulary: the token {token_id} begins or ends texts, "
                f"but there are {len(token_bytes)} tokens"
            )
    special_ids = {i for i, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL)}
    special_ids.update(eos_ids if bos_id is None else [bos_id, *eos_ids])
    add_bos = file.get("tokenizer.ggml.add_bos_token", bool, add_bos)
    add_eos = file.get("tokenizer.ggml.add_eos_token", bool, False)
    return Vocabulary(
        token_bytes=token_bytes,
        special_ids=frozenset(special_ids),
        bos_token_id=bos_id,
        eos_token_ids=frozenset(eos_ids),
        bos_token="" if bos_id is None else token_bytes[bos_id].decode(),
        eos_token="" if eos_id is None else token_bytes[eos_id].decode(),
        prefix_ids=[bos_id] if add_bos and bos_id is not None else [],
        suffix_ids=[eos_id] if add_eos and eos_id is not None else [],
        has_space_prefix=has_space_prefix,
        chat_template=file.get("tokenizer.chat_template", str),
    )
