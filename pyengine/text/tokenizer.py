"""What the engine and the server ask of a tokenizer."""

import abc
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyengine.errors import ModelLoadError


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What is known of a tokenizer's tokens, whatever splits text into them."""

    token_bytes: list[bytes]  # by token id; of special tokens, the UTF-8 of their names
    special_ids: frozenset[int]  # tokens that stand for no text
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    bos_token: str
    eos_token: str
    prefix_ids: list[int]  # put before a text, and after it, if special tokens are asked for
    suffix_ids: list[int]
    has_space_prefix: bool  # texts are encoded with a space before their first word
    chat_template: str | None


class Tokenizer(abc.ABC):
    """Text to token ids and back. Immutable, so any thread may use it.

    Attributes:
        vocab_size: one more than the highest token id. A model may have more rows than that.
        bos_token_id: the token that begins a text, if there is one.
        eos_token_ids: the tokens that end an answer.
        bos_token, eos_token: their names for chat templates; empty if there is none.
        chat_template: the Jinja source that came with the model, if one did.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocab_size = len(vocabulary.token_bytes)
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        self.bos_token = vocabulary.bos_token
        self.eos_token = vocabulary.eos_token
        self.chat_template = vocabulary.chat_template
        self._vocabulary = vocabulary

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The token ids of a text.

        Args:
            text: halves of surrogate pairs, which aren't text, are read as U+FFFD.
            add_special_tokens: put the tokens around the text that the model's files ask for
                (beginning of sequence, say).
            parse_special: read the names of special tokens in the text as these tokens, as
                rendered chat templates need it; otherwise they are text like any other.
        """
        token_ids = self._encode(_without_lone_surrogates(text), parse_special)
        if add_special_tokens:
            return self._vocabulary.prefix_ids + token_ids + self._vocabulary.suffix_ids
        return token_ids

    @property
    def special_names(self) -> re.Pattern[str] | None:
        """Matches the names that encode() reads as special tokens; None if it reads none."""
        return None

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """encode(), without tokens around the text, of the joined pieces, of which every second is
        the name of a special token; no other name is read as one."""
        return self._encode_pieces([_without_lone_surrogates(piece) for piece in pieces])

    def _encode_pieces(self, pieces: list[str]) -> list[int]:
        return self._encode("".join(pieces), False)

    @abc.abstractmethod
    def _encode(self, text: str, parse_special: bool) -> list[int]:
        """encode() without the tokens around the text."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence of tokens, with U+FFFD where its bytes aren't UTF-8.

        A space that encode() puts before the first word is left out. For text that comes token by
        token, as the continuation of another, see Detokenizer.
        """
        kept = (i for i in token_ids if not (skip_special_tokens and self.is_special(i)))
        text = b"".join(map(self.token_bytes, kept)).decode(errors="replace")
        return text.removeprefix(" ") if self._vocabulary.has_space_prefix else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; of a special token, the UTF-8 of its name.

        Empty for ids beyond the vocabulary, which a model may have rows for.
        """
        return self._vocabulary.token_bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the token stands for no text."""
        return token_id in self._vocabulary.special_ids


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder (tokenizer.json, tokenizer.model) or a .gguf file.

    Raises:
        ModelLoadError: it is missing, broken, or of a kind that isn't supported.
    """
    # Here, so that each format's library is imported only for its own files.
    if path.is_file():
        from pyengine.text.gguf_tokenizer import load_gguf_tokenizer

        return load_gguf_tokenizer(path)
    if not path.is_dir():
        raise ModelLoadError(f"{path}: no such file or folder")
    from pyengine.text.folder_settings import read_folder_settings

    settings = read_folder_settings(path)
    if (path / "tokenizer.json").exists():
        from pyengine.text.hf_tokenizer import load_hf_tokenizer

        return load_hf_tokenizer(path / "tokenizer.json", settings)
    if (path / "tokenizer.model").exists():
        from pyengine.text.sentencepiece_tokenizer import load_sentencepiece_tokenizer

        return load_sentencepiece_tokenizer(path / "tokenizer.model", settings)
    raise ModelLoadError(
        f"{path}: there is no tokenizer (neither tokenizer.json nor tokenizer.model)"
    )


def _without_lone_surrogates(text: str) -> str:
    """JSON can spell halves of surrogate pairs; no tokenizer takes them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
