"""tokenizer.json folders, against transformers' reading of the same folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from pyengine.errors import ModelLoadError
from pyengine.text.quoting import Quoter
from pyengine.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.texts import CORPUS, TEXTS, train_byte_level_bpe

SPECIAL = ["<s>", "</s>", "<unk>", "<|end|>"]


def byte_level() -> Backend:
    """GPT-2's kind, as Llama 3 has it: the post-processor puts the first token."""
    backend = train_byte_level_bpe()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


def sentencepiece_like(prepend_in_normalizer: bool) -> Backend:
    """Llama 2's kind: spaces as U+2581, tokens for bytes; in the older and the newer spelling."""
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "\u2581")
    strip = decoders.Strip(content=" ", left=1)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    backend.decoder = decoders.Sequence(steps)
    if prepend_in_normalizer:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = BpeTrainer(
        vocab_size=500,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        limit_alphabet=80,
        max_token_length=8,
    )
    backend.train_from_iterator([text for text in CORPUS if "<" not in text], trainer)
    # Tokens for bytes are not special, though the trainer has no other way to add them.
    state = json.loads(backend.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    backend = Backend.from_str(json.dumps(state))
    backend.add_special_tokens(["<|end|>"])
    return backend


BACKENDS = {
    "byte-level": byte_level(),
    "metaspace": sentencepiece_like(prepend_in_normalizer=False),
    "prepend": sentencepiece_like(prepend_in_normalizer=True),
}


def save(backend: Backend, folder: Path, **config: Any) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
    )
    return folder


@pytest.fixture(scope="module", params=list(BACKENDS))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    folder = save(BACKENDS[request.param], tmp_path_factory.mktemp("hf"))
    return load_tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_encodes_as_transformers_does(
    pair: tuple[Tokenizer, Any], text: str, add_special_tokens: bool
) -> None:
    ours, theirs = pair
    expected = theirs.encode(text, add_special_tokens=add_special_tokens)
    assert ours.encode(text, add_special_tokens=add_special_tokens) == expected


@given(text=st.text())
def test_encodes_any_text_as_transformers_does(pair: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = pair
    assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_decodes_as_transformers_does(
    pair: tuple[Tokenizer, Any], text: str, skip_special_tokens: bool
) -> None:
    ours, theirs = pair
    token_ids = theirs.encode(text, add_special_tokens=False)
    expected = theirs.decode(
        token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    assert ours.decode(token_ids, skip_special_tokens=skip_special_tokens) == expected


def test_what_is_known_of_the_tokens_agrees(pair: tuple[Tokenizer, Any]) -> None:
    ours, theirs = pair
    assert ours.vocab_size == len(theirs)
    assert (ours.bos_token_id, ours.bos_token) == (theirs.bos_token_id, "<s>")
    assert (ours.eos_token_ids, ours.eos_token) == ({theirs.eos_token_id}, "</s>")
    special = set(theirs.all_special_ids) | {theirs.convert_tokens_to_ids("<|end|>")}
    special |= {theirs.convert_tokens_to_ids("<unk>")}
    assert {i for i in range(ours.vocab_size) if ours.is_special(i)} == special


def test_names_of_special_tokens_can_be_read_as_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(BACKENDS["byte-level"], tmp_path))
    end, think = (BACKENDS["byte-level"].token_to_id(token) for token in ("<|end|>", "<think>"))
    assert tokenizer.encode("<|end|><think>", add_special_tokens=False) == [end, think]
    as_text = tokenizer.encode("<|end|><think>", add_special_tokens=False, parse_special=False)
    assert end not in as_text
    assert as_text[-1] == think  # not a special token
    assert tokenizer.decode(as_text) == "<|end|><think>"


@settings(deadline=None)  # the first call builds a tokenizer
@given(text=st.lists(st.text() | st.sampled_from(["<s>", "</s>", " a"])).map("".join))
def test_a_text_cut_at_its_special_tokens_is_encoded_as_the_whole(
    pair: tuple[Tokenizer, Any], text: str
) -> None:
    tokenizer, _ = pair
    pieces = Quoter(tokenizer.special_names).split(text)
    whole = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.encode_pieces(pieces) == whole


def test_the_text_of_an_added_token_is_not_read_as_spelled_bytes(tmp_path: Path) -> None:
    backend = byte_level()
    backend.add_tokens([AddedToken("é", normalized=False)])
    tokenizer = load_tokenizer(save(backend, tmp_path))
    assert tokenizer.decode(tokenizer.encode("café")) == "café"


def test_halves_of_surrogate_pairs_are_read_as_replacement_characters(tmp_path: Path) -> None:
    """JSON strings can hold them, and the library raised on them."""
    tokenizer = load_tokenizer(save(BACKENDS["byte-level"], tmp_path))
    assert tokenizer.decode(tokenizer.encode("a\ud800b\ud83d\ude00")) == "a�b😀"


def test_the_tokenizers_file_alone_says_what_surrounds_a_text(tmp_path: Path) -> None:
    config = {"add_bos_token": False, "add_eos_token": True}
    tokenizer = load_tokenizer(save(BACKENDS["byte-level"], tmp_path, **config))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert tokenizer.encode("Hello") == theirs.encode("Hello")
    assert tokenizer.encode("Hello")[0] == tokenizer.bos_token_id


def test_every_file_of_the_folder_may_name_ends_of_an_answer(tmp_path: Path) -> None:
    save(BACKENDS["byte-level"], tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    end = BACKENDS["byte-level"].token_to_id("</s>")
    assert load_tokenizer(tmp_path).eos_token_ids == {7, 8, 9, end}


def test_tokens_may_be_given_with_their_properties(tmp_path: Path) -> None:
    token = {"__type": "AddedToken", "content": "<|end|>", "special": True}
    tokenizer = load_tokenizer(save(BACKENDS["byte-level"], tmp_path, eos_token=token))
    assert tokenizer.eos_token == "<|end|>"


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    tokenizer = load_tokenizer(save(backend, tmp_path))
    assert (
        tokenizer.encode("Hello world, hello")
        == BACKENDS["byte-level"].encode("Hello world, hello").ids
    )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, None),
        ("{{ 1 }}", "{{ 1 }}"),
        ([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}], "yes"),
        ([{"name": "tool_use", "template": "no"}], None),
    ],
)
def test_the_chat_template_comes_from_the_configuration(
    tmp_path: Path, template: object, expected: str | None
) -> None:
    tokenizer = load_tokenizer(save(BACKENDS["byte-level"], tmp_path, chat_template=template))
    assert tokenizer.chat_template == expected


def test_a_file_with_the_chat_template_goes_first(tmp_path: Path) -> None:
    save(BACKENDS["byte-level"], tmp_path, chat_template="old")
    (tmp_path / "chat_template.jinja").write_text("{{ 'new' }}\n")
    assert load_tokenizer(tmp_path).chat_template == "{{ 'new' }}\n"


def test_unreadable_folders_are_refused_saying_why(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere: no such file or folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: broken tokenizer: EOF"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match="expected a JSON object, got list"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"one": {}}}')
    with pytest.raises(ModelLoadError, match="broken added_tokens_decoder"):
        load_tokenizer(tmp_path)


def test_a_decoder_that_cannot_give_bytes_is_refused(tmp_path: Path) -> None:
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelLoadError, match=r"decoder \(WordPiece\) isn't supported"):
        load_tokenizer(save(backend, tmp_path))
