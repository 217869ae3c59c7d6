"""Incremental detokenization: joined pieces equal the whole, however tokens cut characters."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.text.detokenizer import Detokenizer
from pyengine.text.tokenizer import Tokenizer, Vocabulary


class TokensOf(Tokenizer):
    """Tokens 0, 1, 2... with the given bytes, then a special one."""

    def __init__(self, token_bytes: list[bytes]) -> None:
        self.end = len(token_bytes)
        super().__init__(
            Vocabulary(
                token_bytes=[*token_bytes, b"<end>"],
                special_ids=frozenset([self.end]),
                bos_token_id=None,
                eos_token_ids=frozenset([self.end]),
                bos_token="",
                eos_token="<end>",
                prefix_ids=[],
                suffix_ids=[],
                has_space_prefix=False,
                chat_template=None,
            )
        )

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        raise NotImplementedError


def pieces(token_bytes: list[bytes]) -> list[str]:
    """What each token, and then the end, adds to the text."""
    detokenizer = Detokenizer(TokensOf(token_bytes), skip_special_tokens=True)
    pushed = [detokenizer.push(token_id) for token_id in range(len(token_bytes))]
    return [*pushed, detokenizer.flush()]


@st.composite
def cut_up_bytes(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> list[bytes]:
    text = draw(whole)
    cuts = draw(st.lists(st.integers(0, len(text))))
    return [text[start:end] for start, end in pairwise(sorted([0, len(text), *cuts]))]


@given(cut_up_bytes(st.text().map(str.encode)))
def test_text_survives_any_cut(token_bytes: list[bytes]) -> None:
    assert "".join(pieces(token_bytes)) == b"".join(token_bytes).decode()


@given(cut_up_bytes(st.binary()))
def test_any_bytes_join_to_the_whole_decoded_at_once(token_bytes: list[bytes]) -> None:
    assert "".join(pieces(token_bytes)) == b"".join(token_bytes).decode(errors="replace")


@given(cut_up_bytes(st.text().map(str.encode)))
def test_a_character_comes_with_the_token_that_completes_it(token_bytes: list[bytes]) -> None:
    so_far = b""
    text = ""
    for token, piece in zip(token_bytes, pieces(token_bytes), strict=False):
        so_far += token
        text += piece
        assert text == so_far.decode(errors="ignore")


@pytest.mark.parametrize(
    "text", ["é", "€", "😀", "👨‍👩‍👧"], ids=["2 bytes", "3 bytes", "4 bytes", "joined"]
)
def test_scenario_f3_characters_split_over_tokens_byte_by_byte(text: str) -> None:
    token_bytes = [bytes([byte]) for byte in text.encode()]
    assert "".join(pieces(token_bytes)) == text
    assert "�" not in "".join(pieces(token_bytes))


def test_scenario_f3_invalid_bytes_at_the_end_become_one_replacement_character() -> None:
    assert pieces([b"a", b"\xf0\x9f", b"\x98"]) == ["a", "", "", "�"]


def test_special_tokens_add_text_only_if_they_are_not_skipped() -> None:
    tokenizer = TokensOf([b"a"])
    skipping = Detokenizer(tokenizer, skip_special_tokens=True)
    assert [skipping.push(0), skipping.push(tokenizer.end), skipping.flush()] == ["a", "", ""]
    keeping = Detokenizer(tokenizer, skip_special_tokens=False)
    assert [keeping.push(0), keeping.push(tokenizer.end), keeping.flush()] == ["a", "<end>", ""]


def test_ids_beyond_the_vocabulary_add_nothing() -> None:
    detokenizer = Detokenizer(TokensOf([b"a"]), skip_special_tokens=True)
    assert detokenizer.push(1000) == ""
