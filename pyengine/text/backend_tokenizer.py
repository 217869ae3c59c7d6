"""Tokenizers of the library `tokenizers`, whatever file they were built from."""

import functools
import re
import secrets

import tokenizers

from pyengine.text.quoting import any_of
from pyengine.text.tokenizer import Tokenizer, Vocabulary


class BackendTokenizer(Tokenizer):
    """Splits text with a `tokenizers.Tokenizer`.

    Args:
        backend: of which only the splitting is used: what its tokens mean is in the vocabulary.
    """

    def __init__(self, backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._backend = backend
        self._special = {i: t for i, t in backend.get_added_tokens_decoder().items() if t.special}

    @functools.cached_property
    def special_names(self) -> re.Pattern[str] | None:
        return any_of(token.content for token in self._special.values())

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        return self._encode_with(self._backend if parse_special else self._plain_backend, text)

    def _encode_pieces(self, pieces: list[str]) -> list[int]:
        backend, aliases, ids = self._aliased_backend
        text = "".join(aliases[piece] if index % 2 else piece for index, piece in enumerate(pieces))
        return [ids.get(i, i) for i in self._encode_with(backend, text)]

    def _encode_with(self, backend: tokenizers.Tokenizer, text: str) -> list[int]:
        # Of the library's ways to encode, only those for batches release the GIL: with another, a
        # long text would hold up all threads for seconds.
        [encoding] = backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    @functools.cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        """A copy that takes the names of special tokens for text. The setting belongs to the whole
        tokenizer, so changing it call by call would not be safe between threads."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend

    @functools.cached_property
    def _aliased_backend(self) -> tuple[tokenizers.Tokenizer, dict[str, str], dict[int, int]]:
        """A copy that knows special tokens by other names, which no text can hold since they are
        drawn. So it treats the text around these tokens just as the original does.

        -> the copy; name -> alias; the alias's token id -> that of the special token.
        """
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        secret = secrets.token_hex(16)
        aliases = {token.content: f"<{secret}:{i}>" for i, token in self._special.items()}
        backend.add_tokens(
            [
                tokenizers.AddedToken(
                    aliases[token.content],
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=token.normalized,
                    special=False,
                )
                for token in self._special.values()
            ]
        )
        alias_ids = backend.get_vocab(with_added_tokens=True)
        ids = {alias_ids[aliases[token.content]]: i for i, token in self._special.items()}
        return backend, aliases, ids
