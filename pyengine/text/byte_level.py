"""The alphabet in which byte-level BPE spells bytes (Radford et al. 2019, GPT-2).

Each byte has a printable character: the printable ones of Latin-1 stand for themselves, the others
get the characters from U+0100 on, in order. A space is thus U+0120.
"""


def _alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + index): byte for index, byte in enumerate(others)},
    }


_BYTES = _alphabet()


def to_bytes(token: str) -> bytes:
    """The bytes that a token spells; of text outside the alphabet, its UTF-8."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode()
