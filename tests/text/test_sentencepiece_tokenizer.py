"""sentencepiece models, as tokenizer.model and as GGUF vocabularies, against the library."""

import json
from pathlib import Path

import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from pyengine.errors import ModelLoadError
from pyengine.text.quoting import Quoter
from pyengine.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.gguf_files import write_gguf
from tests.text.texts import TEXTS, train_sentencepiece

# Texts that name a special token: we read those, the library doesn't.
PLAIN_TEXTS = [text for text in TEXTS if "<s>" not in text]

MODEL = train_sentencepiece(user_defined_symbols=["<think>", "\u2581\u2581\u2581\u2581"])
UNKNOWN, BOS, EOS = range(3)


def write_folder(folder: Path, **config: object) -> Path:
    (folder / "tokenizer.model").write_bytes(MODEL)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_gguf_of(model: bytes, path: Path, **flags: bool) -> Path:
    """The vocabulary of a model as converters to GGUF write it."""
    processor = SentencePieceProcessor(model_proto=model)

    def type_of(token_id: int) -> int:
        kinds = {
            2: processor.is_unknown(token_id),
            3: processor.is_control(token_id),
            5: processor.is_unused(token_id),
            6: processor.is_byte(token_id),
        }
        if processor.id_to_piece(token_id) in ("<think>", "\u2581\u2581\u2581\u2581"):
            return 4
        return next((kind for kind, holds in kinds.items() if holds), 1)

    def add(writer: GGUFWriter) -> None:
        ids = range(len(processor))
        types = [type_of(i) for i in ids]
        pieces = [processor.id_to_piece(i) for i in ids]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(
            [
                piece.replace("\u2581", " ") if kind == 4 else piece
                for piece, kind in zip(pieces, types, strict=True)
            ]
        )
        writer.add_token_scores([processor.get_score(i) for i in ids])
        writer.add_token_types(types)
        writer.add_bos_token_id(BOS)
        writer.add_eos_token_id(EOS)
        for key, value in flags.items():
            writer.add_bool(f"tokenizer.ggml.{key}", value)

    return write_gguf(path, add)


@pytest.fixture(scope="module", params=["folder", "gguf"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("sentencepiece")
    if request.param == "folder":
        return load_tokenizer(write_folder(folder))
    return load_tokenizer(write_gguf_of(MODEL, folder / "model.gguf"))


@pytest.fixture(scope="module")
def library() -> SentencePieceProcessor:
    return SentencePieceProcessor(model_proto=MODEL)


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_encodes_as_the_library_does(
    tokenizer: Tokenizer, library: SentencePieceProcessor, text: str
) -> None:
    assert tokenizer.encode(text) == [BOS, *library.encode(text)]


@given(text=st.text())
def test_encodes_any_text_as_the_library_does(
    tokenizer: Tokenizer, library: SentencePieceProcessor, text: str
) -> None:
    assert tokenizer.encode(text, parse_special=False) == [BOS, *library.encode(text)]


@given(text=st.text().filter(lambda text: "\u2581" not in text))
def test_the_bytes_of_the_tokens_are_those_of_the_text_after_a_space(
    tokenizer: Tokenizer, text: str
) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    prefix = b" " if text else b""
    joined = b"".join(map(tokenizer.token_bytes, token_ids))
    if UNKNOWN not in token_ids:
        assert joined == prefix + text.encode()
        assert tokenizer.decode(token_ids) == text


def test_what_is_known_of_the_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 420
    assert (tokenizer.bos_token_id, tokenizer.bos_token) == (BOS, "<s>")
    assert (tokenizer.eos_token_ids, tokenizer.eos_token) == ({EOS}, "</s>")
    assert [tokenizer.is_special(i) for i in range(4)] == [True, True, True, False]
    assert tokenizer.token_bytes(EOS) == b"</s>"


def test_special_tokens_in_the_text_are_read_if_asked_for(
    tokenizer: Tokenizer, library: SentencePieceProcessor
) -> None:
    hello = library.encode("Hello")
    assert tokenizer.encode("<s>Hello</s>Hello") == [BOS, BOS, *hello, EOS, *hello]
    assert tokenizer.encode("</s>", parse_special=False) == [BOS, *library.encode("</s>")]


@given(text=st.lists(st.text() | st.sampled_from(["<s>", "<think>", " a"])).map("".join))
def test_a_text_cut_at_its_special_tokens_is_encoded_as_the_whole(
    tokenizer: Tokenizer, text: str
) -> None:
    pieces = Quoter(tokenizer.special_names).split(text)
    whole = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.encode_pieces(pieces) == whole


def test_a_folder_may_ask_for_no_space_after_special_tokens(
    tmp_path: Path, library: SentencePieceProcessor
) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, legacy=False))
    first, later = library.encode("Hello"), library.encode("Hello")[1:]
    assert library.decode(library.encode("Hello")[:1]) == ""  # the space alone
    assert tokenizer.encode("Hello</s>Hello") == [BOS, *first, EOS, *later]
    assert tokenizer.decode(first) == "Hello"


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_the_space_before_texts_can_be_turned_off(
    tmp_path: Path, library: SentencePieceProcessor, kind: str
) -> None:
    if kind == "folder":
        path = write_folder(tmp_path, add_prefix_space=False)
    else:
        path = write_gguf_of(MODEL, tmp_path / "model.gguf", add_space_prefix=False)
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("Hello") == [BOS, *library.encode("Hello")[1:]]
    assert tokenizer.decode(library.encode("Hello")) == " Hello"


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_the_file_says_what_surrounds_a_text(
    tmp_path: Path, library: SentencePieceProcessor, kind: str
) -> None:
    flags = {"add_bos_token": False, "add_eos_token": True}
    if kind == "folder":
        path = write_folder(tmp_path, **flags)
    else:
        path = write_gguf_of(MODEL, tmp_path / "model.gguf", **flags)
    assert load_tokenizer(path).encode("Hello") == [*library.encode("Hello"), EOS]


def test_a_gguf_file_may_ask_for_single_spaces(tmp_path: Path) -> None:
    model = train_sentencepiece(remove_extra_whitespaces=True)
    path = write_gguf_of(model, tmp_path / "model.gguf", remove_extra_whitespaces=True)
    library = SentencePieceProcessor(model_proto=model)
    tokenizer = load_tokenizer(path)
    for text in PLAIN_TEXTS:
        assert tokenizer.encode(text) == [BOS, *library.encode(text)]


def test_a_folder_adds_tokens_to_the_model(tmp_path: Path) -> None:
    write_folder(
        tmp_path,
        eos_token="<|end|>",
        added_tokens_decoder={"421": {"content": "<|end|>", "special": True}},
    )
    (tmp_path / "added_tokens.json").write_text('{"<tool>": 422, "<pad>": 423}')
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "<pad>"}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 424
    assert tokenizer.encode("<tool><|end|><pad>") == [BOS, 422, 421, 423]
    assert 422 in tokenizer.encode("<tool>", parse_special=False)
    assert [tokenizer.is_special(i) for i in (421, 422, 423)] == [True, False, True]
    assert [tokenizer.token_bytes(i) for i in (420, 421, 422)] == [b"", b"<|end|>", b"<tool>"]
    assert tokenizer.eos_token_ids == {421}


def test_broken_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model: broken sentencepiece model"):
        load_tokenizer(tmp_path)

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "a"])
        writer.add_token_scores([0.0])

    path = write_gguf(tmp_path / "model.gguf", add)
    with pytest.raises(ModelLoadError, match="broken vocabulary: 2 tokens, but 1 scores"):
        load_tokenizer(path)
