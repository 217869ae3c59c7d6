"""Byte-level BPE from GGUF files, against a slow twin and the models' published tokenizers."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pyengine.errors import ModelLoadError
from pyengine.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.gguf_files import write_bpe, write_gguf
from tests.text.texts import TEXTS, train_byte_level_bpe

CONTROL, USER_DEFINED = 3, 4
SPECIAL = {"<|begin|>": CONTROL, "<|end|>": CONTROL, "<think>": USER_DEFINED}

trained = train_byte_level_bpe()
trained_model = json.loads(trained.to_str())["model"]
vocabulary: dict[str, int] = trained_model["vocab"]
tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
merges: list[list[str]] = trained_model["merges"]
begin, end, think = range(len(tokens), len(tokens) + 3)


def write(path: Path, pre: str | None, **ids_and_flags: int | bool) -> Tokenizer:
    pairs = [" ".join(pair) for pair in merges]
    ids: dict[str, int | bool] = {"bos_token_id": begin, "eos_token_id": end, **ids_and_flags}
    return load_tokenizer(write_bpe(path, pre, tokens, pairs, SPECIAL, **ids))


def published(pre: str) -> Backend:
    """The tokenizer as the models' own tokenizer.json files have it."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    with_regex = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    llama3 = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
        r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    qwen2 = llama3.replace("{1,3}", "")
    steps = {
        "gpt-2": [with_regex],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), with_regex],
        "llama-bpe": [pre_tokenizers.Split(Regex(llama3), "isolated"), byte_level],
        "qwen2": [pre_tokenizers.Split(Regex(qwen2), "isolated"), byte_level],
    }
    pairs = [(left, right) for left, right in merges]
    backend = Backend(models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps[pre])
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens(["<|begin|>", "<|end|>"])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return backend


@pytest.fixture(scope="module", params=["gpt-2", "smollm", "llama-bpe", "qwen2"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Backend]:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return write(path, request.param), published(request.param)


@pytest.mark.parametrize("text", TEXTS)
def test_splits_texts_as_the_published_tokenizers_do(
    pair: tuple[Tokenizer, Backend], text: str
) -> None:
    ours, theirs = pair
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text).ids
    theirs.encode_special_tokens = True
    as_text = theirs.encode(text).ids
    theirs.encode_special_tokens = False
    assert ours.encode(text, add_special_tokens=False, parse_special=False) == as_text


@given(text=st.text())
def test_splits_any_text_as_the_published_tokenizers_do(
    pair: tuple[Tokenizer, Backend], text: str
) -> None:
    ours, theirs = pair
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text).ids


@given(text=st.text())
def test_the_bytes_of_the_tokens_are_those_of_the_text(
    pair: tuple[Tokenizer, Backend], text: str
) -> None:
    tokenizer, published = pair
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    expected = published.normalizer.normalize_str(text) if published.normalizer else text
    assert b"".join(map(tokenizer.token_bytes, token_ids)) == expected.encode()
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == expected


def slow_bpe(pieces: Sequence[str]) -> list[int]:
    """Merges the best pair of each piece until there is none."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
    ids = []
    for piece in pieces:
        parts = [character for text, _ in byte_level.pre_tokenize_str(piece) for character in text]
        while pairs := [pair for pair in pairwise(parts) if pair in ranks]:
            best = min(pairs, key=ranks.__getitem__)
            index = list(pairwise(parts)).index(best)
            parts[index : index + 2] = ["".join(best)]
        ids += [vocabulary[part] for part in parts]
    return ids


def slow_default_pieces(text: str) -> list[str]:
    """llama.cpp's pre-tokenizer for files that name none: each pattern cuts the pieces of the one
    before, matches and the text between them both being pieces."""
    pieces = [text]
    for pattern in (
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    ):
        cut = [regex.split(f"({pattern})", piece) for piece in pieces]
        pieces = [part for parts in cut for part in parts if part]
    return pieces


@pytest.mark.parametrize("pre", ["default", None])
def test_files_that_name_no_pre_tokenizer_get_the_default_one(
    tmp_path: Path, pre: str | None
) -> None:
    tokenizer = write(tmp_path / "model.gguf", pre)
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        if "<think>" not in text:
            assert token_ids == slow_bpe(slow_default_pieces(text)), text


def test_a_user_defined_token_is_read_always_and_is_no_special_token(tmp_path: Path) -> None:
    tokenizer = write(tmp_path / "model.gguf", "gpt-2")
    assert tokenizer.encode("<think>", parse_special=False) == [think]
    assert tokenizer.decode([begin, think, end]) == "<think>"
    assert [tokenizer.is_special(i) for i in (0, begin, end, think)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("pre", "flags", "expected"),
    [
        ("gpt-2", {}, [0]),
        ("gpt-2", {"add_bos_token": True}, [begin, 0]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [begin, 0, end]),
        ("llama-bpe", {}, [begin, 0]),
        ("llama-bpe", {"add_bos_token": False}, [0]),
    ],
)
def test_the_file_says_what_surrounds_a_text(
    tmp_path: Path, pre: str, flags: dict[str, bool], expected: list[int]
) -> None:
    tokenizer = write(tmp_path / "model.gguf", pre, **flags)
    assert tokens[0] == "!"
    assert tokenizer.encode("!") == expected
    assert tokenizer.encode("!", add_special_tokens=False) == [0]


def test_all_ends_of_a_turn_end_an_answer(tmp_path: Path) -> None:
    special = {"<|begin|>": 3, "<|end_of_text|>": 3, "<|eot_id|>": 3, "<|eom|>": 3, "<|im_end|>": 3}
    first = len(tokens)
    path = write_bpe(
        tmp_path / "model.gguf",
        "gpt-2",
        tokens,
        ["l o"],
        special,
        eos_token_id=first + 1,
        eom_token_id=first + 3,
    )
    tokenizer = load_tokenizer(path)
    assert tokenizer.eos_token_ids == {first + 1, first + 2, first + 3, first + 4}
    assert tokenizer.eos_token == "<|end_of_text|>"


def test_an_unknown_pre_tokenizer_is_refused_naming_those_known(tmp_path: Path) -> None:
    message = (
        "the pre-tokenizer 'tekken' isn't supported, only 'default', 'gpt-2', 'smollm', "
        "'llama-bpe', 'qwen2'"
    )
    with pytest.raises(ModelLoadError, match=message):
        write(tmp_path / "model.gguf", "tekken")


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", lambda writer: writer.add_tokenizer_model("rwkv"))
    with pytest.raises(ModelLoadError, match="the tokenizer 'rwkv' isn't supported"):
        load_tokenizer(path)


def test_broken_vocabularies_are_refused(tmp_path: Path) -> None:
    path = write_bpe(tmp_path / "merges.gguf", "gpt-2", tokens, ["nowhere near"], {})
    with pytest.raises(ModelLoadError, match=r"merges\.gguf: broken vocabulary: .*nowhere"):
        load_tokenizer(path)
    path = write_bpe(tmp_path / "types.gguf", "gpt-2", tokens, ["l o"], {"<new>": 9})
    with pytest.raises(ModelLoadError, match=r"unknown token types \{9\}"):
        load_tokenizer(path)
    path = write_bpe(tmp_path / "ends.gguf", "gpt-2", tokens, ["l o"], {}, eos_token_id=9999)
    with pytest.raises(ModelLoadError, match=r"the token 9999 begins or ends texts, but there"):
        load_tokenizer(path)
