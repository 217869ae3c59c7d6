"""Grammars over every kind of tokenizer, followed by random walks."""

import json
import random
import re
from pathlib import Path

import pytest
from tokenizers import decoders

from pyengine.errors import InvalidRequestError
from pyengine.sampling_params import Grammar, GrammarKind
from pyengine.structured import GrammarCompiler, GrammarMatcher
from pyengine.structured.compiler import MAX_CACHED_GRAMMARS
from pyengine.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.texts import train_byte_level_bpe, train_sentencepiece
from tests.tiny import VOCAB_SIZE, ByteTokenizer

PATTERN = r"[a-zé日 ]{2,6}(,[0-9]{1,3})*(😀|!)"
NUM_SPARE_ROWS = 37  # of the model, beyond the tokenizer's tokens


def tokenizer_of(kind: str, folder: Path) -> Tokenizer:
    match kind:
        case "sentencepiece":
            (folder / "tokenizer.model").write_bytes(train_sentencepiece())
            (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        case "byte-level":
            backend = train_byte_level_bpe()
            backend.decoder = decoders.ByteLevel()
            backend.add_special_tokens(["<|end|>"])
            backend.save(str(folder / "tokenizer.json"))
            (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    return load_tokenizer(folder)


def allowed(matcher: GrammarMatcher, vocab_size: int) -> list[int]:
    mask = matcher.allowed_tokens()
    assert len(mask) * 8 == -(-vocab_size // 32) * 32
    return [i for i in range(len(mask) * 8) if mask[i // 8] >> i % 8 & 1]


@pytest.mark.parametrize("kind", ["sentencepiece", "byte-level"])
def test_any_walk_spells_a_match_and_ends_with_an_end_token_or_where_nothing_follows(
    kind: str, tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(kind, tmp_path)
    vocab_size = tokenizer.vocab_size + NUM_SPARE_ROWS
    compiled = GrammarCompiler(tokenizer, vocab_size).compile(Grammar("regex", PATTERN))
    rng = random.Random(0)
    lengths = set()
    for _ in range(100):
        matcher, text, token_ids = compiled.new_matcher(), b"", []
        while not matcher.is_finished:
            choices = allowed(matcher, vocab_size)
            may_end = re.fullmatch(PATTERN, text.decode(errors="replace")) is not None
            assert bool(tokenizer.eos_token_ids.intersection(choices)) == may_end
            token_ids.append(rng.choice(choices))
            matcher.accept(token_ids[-1])
            if token_ids[-1] not in tokenizer.eos_token_ids:
                assert not tokenizer.is_special(token_ids[-1])
                text += tokenizer.token_bytes(token_ids[-1])
        assert re.fullmatch(PATTERN, text.decode())
        lengths.add(len(token_ids))
    assert len(lengths) > 5


def test_text_that_names_an_end_token_is_no_end_token(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("byte-level", tmp_path)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    matcher = compiler.compile(Grammar("choice", '["<|end|>"]')).new_matcher()
    assert not tokenizer.eos_token_ids.intersection(allowed(matcher, tokenizer.vocab_size))


def test_choices_may_be_many_and_begin_each_other() -> None:
    compiler = GrammarCompiler(ByteTokenizer(frozenset({256})), VOCAB_SIZE)
    choices = [str(number) for number in range(3000)]
    compiled = compiler.compile(Grammar("choice", json.dumps(choices)))
    for choice in ("2", "29", "299", "2999"):
        matcher = compiled.new_matcher()
        for token_id in choice.encode():
            matcher.accept(token_id)
        assert matcher.is_finished == (choice == "2999")
        assert choice == "2999" or 256 in allowed(matcher, VOCAB_SIZE)
    matcher = compiled.new_matcher()
    matcher.accept(ord("3"))
    assert allowed(matcher, VOCAB_SIZE) == [*b"0123456789", 256]


def test_avoided_tokens_are_left_out_unless_nothing_else_is_allowed() -> None:
    compiler = GrammarCompiler(ByteTokenizer(frozenset({256})), VOCAB_SIZE)
    matcher = compiler.compile(Grammar("regex", "[ab]")).new_matcher()
    both = (1 << ord("a")) | (1 << ord("b"))
    assert int.from_bytes(matcher.allowed_tokens(), "little") == both
    assert int.from_bytes(matcher.allowed_tokens([ord("a"), 5]), "little") == 1 << ord("b")
    assert int.from_bytes(matcher.allowed_tokens([97, 98]), "little") == both


def test_a_token_that_is_not_allowed_raises() -> None:
    compiler = GrammarCompiler(ByteTokenizer(frozenset({256})), VOCAB_SIZE)
    matcher = compiler.compile(Grammar("regex", "ab")).new_matcher()
    with pytest.raises(RuntimeError, match="cannot be followed"):
        matcher.accept(ord("x"))


def test_the_vocabulary_is_sorted_once_and_before_it_is_needed_if_asked_for() -> None:
    class CountingTokenizer(ByteTokenizer):
        num_reads = 0

        def token_bytes(self, token_id: int) -> bytes:
            self.num_reads += 1
            return super().token_bytes(token_id)

    tokenizer = CountingTokenizer(frozenset({256}))
    compiler = GrammarCompiler(tokenizer, VOCAB_SIZE)
    compiler.prepare()
    assert tokenizer.num_reads == VOCAB_SIZE
    compiler.prepare()
    compiler.compile(Grammar("regex", "a"))
    assert tokenizer.num_reads == VOCAB_SIZE


def test_a_model_without_an_end_token_needs_no_preparation() -> None:
    GrammarCompiler(ByteTokenizer(frozenset()), VOCAB_SIZE).prepare()


def test_the_latest_grammars_are_kept_whatever_field_they_came_from() -> None:
    compiler = GrammarCompiler(ByteTokenizer(frozenset({256})), VOCAB_SIZE)
    first = compiler.compile(Grammar("regex", "a", "guided_regex"))
    assert compiler.compile(Grammar("regex", "a", "structured_outputs.regex")) is first
    for k in range(MAX_CACHED_GRAMMARS - 1):
        compiler.compile(Grammar("choice", f'["{k}"]'))
    assert compiler.compile(Grammar("regex", "a")) is first
    for k in range(MAX_CACHED_GRAMMARS):
        compiler.compile(Grammar("regex", f"{k}"))
    assert compiler.compile(Grammar("regex", "a")) is not first


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "a" * 10_001, "takes at most 10000 characters"),
        ("json_schema", json.dumps({"pattern": "a" * 10_001}), "pattern and patternProperties"),
        (
            "json_schema",
            json.dumps({"allOf": [{"patternProperties": {"a" * 6_000: {}}}] * 2}),
            "pattern and patternProperties",
        ),
    ],
)
def test_regexes_that_would_take_long_are_refused(
    kind: GrammarKind, text: str, message: str
) -> None:
    compiler = GrammarCompiler(ByteTokenizer(frozenset({256})), VOCAB_SIZE)
    with pytest.raises(InvalidRequestError, match=message):
        compiler.compile(Grammar(kind, text))
