"""The tokenizer.json of a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import tokenizers

from pyengine.errors import ModelLoadError
from pyengine.text import byte_level
from pyengine.text.backend_tokenizer import BackendTokenizer
from pyengine.text.folder_settings import FolderSettings
from pyengine.text.sentencepiece_model import SPACE
from pyengine.text.tokenizer import Tokenizer, Vocabulary


def load_hf_tokenizer(path: Path, settings: FolderSettings) -> Tokenizer:
    """
    Args:
        path: the file tokenizer.json.
        settings: of its folder.

    Raises:
        ModelLoadError: the file is broken, or spells its tokens in a way that isn't supported.
    """
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"{path}: broken tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    bos_id, eos_id = (
        backend.token_to_id(token) for token in (settings.bos_token, settings.eos_token)
    )
    decoders = _decoders(backend)
    added = backend.get_added_tokens_decoder()
    ends = {token_id for token_id in (bos_id, eos_id) if token_id is not None}
    prefix_ids, suffix_ids = _surroundings(backend)
    vocabulary = Vocabulary(
        token_bytes=_token_bytes(path, backend, decoders),
        special_ids=frozenset(ends | {i for i, token in added.items() if token.special}),
        bos_token_id=bos_id,
        eos_token_ids=settings.eos_token_ids | ({eos_id} if eos_id is not None else set()),
        bos_token=settings.bos_token,
        eos_token=settings.eos_token,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        has_space_prefix=_has_space_prefix(decoders),
        chat_template=settings.chat_template,
    )
    return BackendTokenizer(backend, vocabulary)


def _decoders(backend: tokenizers.Tokenizer) -> dict[str, dict[str, Any]]:
    """The steps from tokens to text: type -> its settings."""
    if backend.decoder is None:
        return {}
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {step["type"]: step for step in steps}


def _token_bytes(
    path: Path, backend: tokenizers.Tokenizer, decoders: dict[str, dict[str, Any]]
) -> list[bytes]:
    added = backend.get_added_tokens_decoder()
    spells_bytes = "ByteLevel" in decoders
    has_byte_tokens = "ByteFallback" in decoders
    if not spells_bytes and not {"Metaspace", "Replace"} & decoders.keys():
        raise ModelLoadError(
            f"{path}: the tokenizer's decoder ({', '.join(decoders) or 'none'}) isn't supported, "
            "only ByteLevel and Metaspace and their like"
        )
    vocabulary = backend.get_vocab(with_added_tokens=True)
    result = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        if token_id in added and (spells_bytes or added[token_id].special):
            result[token_id] = token.encode()
        elif spells_bytes:
            result[token_id] = byte_level.to_bytes(token)
        elif has_byte_tokens and _is_byte_token(token):
            result[token_id] = bytes([int(token[3:5], 16)])
        else:
            result[token_id] = token.replace(SPACE, " ").encode()
    return result


def _is_byte_token(token: str) -> bool:
    """Whether it is <0x00> to <0xFF>, the tokens of bytes that no other token covers."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _has_space_prefix(decoders: dict[str, dict[str, Any]]) -> bool:
    """Whether decoding takes away a space, so that encoding must have put it."""
    if metaspace := decoders.get("Metaspace"):
        return bool(metaspace.get("prepend_scheme", "always") != "never")
    strip = decoders.get("Strip")
    return strip is not None and strip["content"] == " " and strip["start"] > 0


def _surroundings(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """-> the ids that the file's post-processor puts before any text, and after it."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise AssertionError(f"a text's tokens {bare} aren't among those with special ones, {full}")
