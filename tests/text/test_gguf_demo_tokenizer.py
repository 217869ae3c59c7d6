"""The tokenizer of a real GGUF file: the demo model's."""

from pathlib import Path

import pytest

from pyengine.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(demo_model_path: Path) -> Tokenizer:
    return load_tokenizer(demo_model_path)


def test_the_ends_and_the_template_come_from_the_file(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token_id, tokenizer.bos_token) == (1, "<|im_start|>")
    assert (tokenizer.eos_token_ids, tokenizer.eos_token) == ({2}, "<|im_end|>")
    assert tokenizer.chat_template is not None
    assert "You are a helpful AI assistant named SmolLM" in tokenizer.chat_template


def test_special_tokens_are_read_only_if_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|>user\n") == [1, 4093, 198]
    as_text = tokenizer.encode("<|im_start|>user\n", parse_special=False)
    assert 1 not in as_text
    assert tokenizer.decode(as_text) == "<|im_start|>user\n"
    assert tokenizer.decode([1, 4093, 198]) == "user\n"
    assert tokenizer.decode([1, 4093, 198], skip_special_tokens=False) == "<|im_start|>user\n"
