"""The tokenizer of a real GGUF file: the demo model's."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from pyengine.text.chat_template import ChatTemplate
from pyengine.text.tokenizer import Tokenizer, load_tokenizer
from pyengine.weights.gguf_file import GGUFFile
from tests.text.texts import CORPUS, TEXTS


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


def test_splits_texts_as_the_published_tokenizer_does(
    tokenizer: Tokenizer, demo_model_path: Path
) -> None:
    metadata = GGUFFile(demo_model_path).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    published = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    published.add_special_tokens(tokens[:17])
    for text in {*TEXTS, *CORPUS, "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>x"}:
        assert tokenizer.encode(text) == published.encode(text).ids, text


def test_a_conversation_is_spelled_out_and_tokenized(tokenizer: Tokenizer) -> None:
    assert tokenizer.chat_template is not None
    template = ChatTemplate(
        tokenizer.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
    )
    prompt = template.render([{"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    token_ids = tokenizer.encode(prompt)
    assert [token_ids.count(1), token_ids.count(2)] == [3, 2]
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == prompt
