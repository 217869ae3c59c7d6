"""Writes sentencepiece models: a serialized protocol buffer, sentencepiece_model.proto.

ModelProto { pieces = 1, trainer_spec = 2, normalizer_spec = 3 }
SentencePiece { piece = 1, score = 2, type = 3 }
TrainerSpec { model_type = 3, byte_fallback = 35 }
NormalizerSpec { name = 1, add_dummy_prefix = 3, remove_extra_whitespaces = 4 }
"""

import struct
from collections.abc import Sequence

# SentencePiece.Type; GGUF has the same numbers in tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

SPACE = "\u2581"  # how pieces write a space

_MODEL_TYPE_BPE = 2


def bpe_model(
    pieces: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
) -> bytes:
    """A model that merges the pair of pieces whose union has the highest score, again and again,
    without normalizing anything but spaces.

    Args:
        pieces, scores, types: by token id; types as above.
        add_dummy_prefix: put a space before each text.
        remove_extra_whitespaces: keep one space of several, and none at the ends.
    """
    parts = [
        _message(1, _message(1, piece.encode()), _float(2, score), _integer(3, type_))
        for piece, score, type_ in zip(pieces, scores, types, strict=True)
    ]
    trainer = _message(2, _integer(3, _MODEL_TYPE_BPE), _integer(35, BYTE in types))
    normalizer = _message(
        3,
        _message(1, b"identity"),
        _integer(3, add_dummy_prefix),
        _integer(4, remove_extra_whitespaces),
    )
    return b"".join([*parts, trainer, normalizer])


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _message(field: int, *parts: bytes) -> bytes:
    """A field of parts that follow a length: another message, or a string."""
    content = b"".join(parts)
    return _varint(field << 3 | 2) + _varint(len(content)) + content
