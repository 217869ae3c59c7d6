"""Tokenizers of the library `sentencepiece`: the tokenizer.model of a Hugging Face folder, and
the vocabularies of the same kind in GGUF files."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from pyengine.errors import ModelLoadError
from pyengine.text.folder_settings import AddedToken, FolderSettings
from pyengine.text.quoting import any_of
from pyengine.text.sentencepiece_model import SPACE
from pyengine.text.tokenizer import Tokenizer, Vocabulary

# A model is a serialized protocol buffer, in which a field that comes again replaces the one
# before: ModelProto.normalizer_spec (3) = {NormalizerSpec.add_dummy_prefix (3) = false}.
_NO_SPACE_PREFIX = b"\x1a\x02\x18\x00"


class SentencePieceTokenizer(Tokenizer):
    """Splits text with sentencepiece, and finds by itself the tokens that it doesn't know.

    Args:
        model: the serialized model.
        added: further tokens, by id: special ones, and such as aren't in the model.
        space_after_special: whether the model's space prefix is put at the beginning of the text
            only, or after each added token in it too.
    """

    def __init__(
        self,
        model: bytes,
        vocabulary: Vocabulary,
        added: Mapping[int, AddedToken],
        *,
        space_after_special: bool,
    ) -> None:
        super().__init__(vocabulary)
        if not vocabulary.has_space_prefix:
            model += _NO_SPACE_PREFIX
        self._first = SentencePieceProcessor(model_proto=model)
        self._later = self._first
        if vocabulary.has_space_prefix and not space_after_special:
            self._later = SentencePieceProcessor(model_proto=model + _NO_SPACE_PREFIX)
        self._ids = {token.text: token_id for token_id, token in added.items()}
        self._all_names = any_of(self._ids)
        self._plain_names = any_of(t.text for t in added.values() if not t.special)
        self._special_names = any_of(t.text for t in added.values() if t.special)

    @property
    def special_names(self) -> re.Pattern[str] | None:
        return self._special_names

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        return self._encode_part(
            text, self._all_names if parse_special else self._plain_names, is_first=True
        )

    def _encode_pieces(self, pieces: list[str]) -> list[int]:
        token_ids: list[int] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                token_ids.append(self._ids[piece])
            else:
                token_ids += self._encode_part(piece, self._plain_names, is_first=index == 0)
        return token_ids

    def _encode_part(
        self, text: str, names: re.Pattern[str] | None, *, is_first: bool
    ) -> list[int]:
        """A part of a text, of which only these names are read as tokens of their own."""
        token_ids: list[int] = []
        end = 0
        for match in names.finditer(text) if names else ():
            token_ids += self._encode_between(text, end, match.start(), is_first=is_first)
            token_ids.append(self._ids[match.group()])
            end = match.end()
        return token_ids + self._encode_between(text, end, len(text), is_first=is_first)

    def _encode_between(self, text: str, start: int, end: int, *, is_first: bool) -> list[int]:
        processor = self._first if is_first and start == 0 else self._later
        ids: list[int] = processor.encode(text[start:end]) if start < end else []
        return ids


def load_sentencepiece_tokenizer(path: Path, settings: FolderSettings) -> Tokenizer:
    """
    Args:
        path: the file tokenizer.model.
        settings: of its folder.

    Raises:
        ModelLoadError: the file is broken.
    """
    model = path.read_bytes()
    processor = open_model(path, model)
    token_bytes = piece_bytes(processor)
    added = {i: AddedToken(text=text, special=True) for i, text in _special_pieces(processor)}
    added.update(settings.added_tokens)
    token_bytes += [b""] * (max(added, default=-1) + 1 - len(token_bytes))
    for token_id, token in added.items():
        token_bytes[token_id] = token.text.encode()
    ids = {token.text: token_id for token_id, token in added.items()}
    bos_id = ids.get(settings.bos_token, _id_or_none(processor.bos_id()))
    eos_id = ids.get(settings.eos_token, _id_or_none(processor.eos_id()))
    vocabulary = Vocabulary(
        token_bytes=token_bytes,
        special_ids=frozenset(i for i, token in added.items() if token.special),
        bos_token_id=bos_id,
        eos_token_ids=settings.eos_token_ids | ({eos_id} if eos_id is not None else set()),
        bos_token="" if bos_id is None else token_bytes[bos_id].decode(),
        eos_token="" if eos_id is None else token_bytes[eos_id].decode(),
        prefix_ids=[bos_id] if settings.add_bos and bos_id is not None else [],
        suffix_ids=[eos_id] if settings.add_eos and eos_id is not None else [],
        has_space_prefix=settings.add_prefix_space and processor.normalize("a") == SPACE + "a",
        chat_template=settings.chat_template,
    )
    return SentencePieceTokenizer(model, vocabulary, added, space_after_special=settings.legacy)


def open_model(path: Path, model: bytes) -> SentencePieceProcessor:
    """
    Raises:
        ModelLoadError: it isn't a sentencepiece model, or one with a broken vocabulary.
    """
    try:
        return SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError) as error:
        raise ModelLoadError(f"{path}: broken sentencepiece model: {error}") from error


def piece_bytes(processor: SentencePieceProcessor) -> list[bytes]:
    """The bytes of each piece; of control pieces and the unknown one, their names."""
    result = []
    for token_id in range(len(processor)):
        piece = processor.id_to_piece(token_id)
        if processor.is_byte(token_id):  # <0x00> to <0xFF>
            result.append(bytes([int(piece[3:5], 16)]))
        elif processor.is_control(token_id) or processor.is_unknown(token_id):
            result.append(piece.encode())
        else:
            result.append(piece.replace(SPACE, " ").encode())
    return result


def _special_pieces(processor: SentencePieceProcessor) -> Iterator[tuple[int, str]]:
    for token_id in range(len(processor)):
        if processor.is_control(token_id) or processor.is_unknown(token_id):
            yield token_id, processor.id_to_piece(token_id)


def _id_or_none(token_id: int) -> int | None:
    return token_id if token_id >= 0 else None  # -1: the model has none
