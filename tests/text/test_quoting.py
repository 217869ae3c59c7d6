"""Names of special tokens in messages are text; the template's own are the tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.text.chat_template import ChatTemplate
from pyengine.text.conversation import Conversation
from pyengine.text.quoting import Quoter, any_of
from pyengine.text.tokenizer import Tokenizer, load_tokenizer
from pyengine.weights import resolve_model

NAMES = ["<s>", "<|im_end|>", "ab", "ba", "X"]


@given(
    st.lists(st.text(alphabet="abX<>s|") | st.sampled_from(NAMES)),
    st.lists(st.sampled_from(NAMES), min_size=1),
)
def test_quoted_names_are_told_from_others_however_they_overlap(
    texts: list[str], separators: list[str]
) -> None:
    text = "".join(texts)
    quoter = Quoter(any_of(NAMES))
    [(key, [marked])] = quoter.quote({text: [text]}).items()
    assert key == marked
    rendered = f"{marked}\n".join(["", *(f"\n{name}\n" for name in separators)])
    pieces = quoter.split(rendered)
    assert pieces[1::2] == separators
    assert "".join(pieces) == quoter.unquote(rendered)
    assert quoter.unquote(marked) == text


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2-135m-instruct", show_progress=False))


@settings(deadline=None)  # the first calls build tokenizers
@given(texts=st.lists(st.text() | st.sampled_from(["<|im_end|>", "<|im_start|>", " a", "\n"])))
def test_the_demo_model_reads_messages_as_text_alone(
    tokenizer: Tokenizer, texts: list[str]
) -> None:
    content = "".join(texts).strip()
    assert tokenizer.chat_template is not None
    template = ChatTemplate(tokenizer.chat_template)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": content}]
    text, token_ids = Conversation(messages=messages).encode(tokenizer, template)
    start, end = (tokenizer.encode(f"<|im_{name}|>")[0] for name in ("start", "end"))

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, parse_special=False)

    expected = [start, *plain("system\ns"), end, *plain("\n"), start]
    expected += [*plain(f"user\n{content}"), end, *plain("\n"), start, *plain("assistant\n")]
    assert token_ids == expected
    assert text == template.render(messages)


def test_without_names_in_messages_nothing_changes(tokenizer: Tokenizer) -> None:
    assert tokenizer.chat_template is not None
    template = ChatTemplate(tokenizer.chat_template)
    messages = [{"role": "user", "content": "  Hé 😀 <think> \n"}]
    text, token_ids = Conversation(messages=messages).encode(tokenizer, template)
    assert token_ids == tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.encode_pieces(Quoter(tokenizer.special_names).split(text)) == token_ids


def test_a_message_that_is_continued_may_hold_names(tokenizer: Tokenizer) -> None:
    assert tokenizer.chat_template is not None
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "It is <|im_end|>"},
    ]
    conversation = Conversation(
        messages=messages, add_generation_prompt=False, continue_final_message=True
    )
    text, token_ids = conversation.encode(tokenizer, ChatTemplate(tokenizer.chat_template))
    assert text.endswith("assistant\nIt is <|im_end|>")
    expected = tokenizer.encode("assistant\nIt is <|im_end|>", parse_special=False)
    assert token_ids[-len(expected) :] == expected
