"""Tokenizers of the library `tokenizers`, whatever file they were built from."""

import functools

import tokenizers

from pyengine.text.tokenizer import Tokenizer, Vocabulary


class BackendTokenizer(Tokenizer):
    """Splits text with a `tokenizers.Tokenizer`.

    Args:
        backend: of which only the splitting is used: what its tokens mean is in the vocabulary.
    """

    def __init__(self, backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._backend = backend

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        backend = self._backend if parse_special else self._plain_backend
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
