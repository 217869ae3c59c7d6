"""Texts that tokenizers cut in different ways, and small vocabularies trained on them."""

import io

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXTS = [
    "",
    " ",
    "Hello",
    " Hello  world",
    "Hello, world! It's 1234567.89 o'clock, isn't IT'S? we'LL",
    "  leading,   inner    and trailing   ",
    "\n\n\ttabs\r\nand\n \n newlines \n",
    "def f(x: int) -> str:\n    return f'{x!r}'  # 100%\n",
    "naïve café, cafe\u0301, Straße, ÀÉÎ, 数字１２３ ٣٤",
    "日本語のテキスト。中文、한국어 Русский ελληνικά עברית",
    "😀 👨‍👩‍👧 🇩🇪 ❤️ ½ ² Ⅷ",
    "<s> </s> <unk> [INST] <|begin|>user\n<|end|><|begin|>",
    "\x00\x01\x7f \u2581 \u00a0 \u200b \ufeff ÿ",
    "$a+b=c^2|d~e<f>g 007 12 1 1000000",
    "word" * 40,
]

# Common enough for merges, rare enough that bytes and unknown letters are left.
CORPUS = [text for text in TEXTS if "<|" not in text] * 3 + [
    "The quick brown fox jumps over the lazy dog, then the other fox does it in 2024 and 2025.",
    "for i in range(10):\n    print(i, 'hello world')\n",
    "It's what we'll do, they've said, and I'm sure that he'd like the thing that you're doing.",
] * 20


def train_byte_level_bpe(vocab_size: int = 600) -> Tokenizer:
    """A GPT-2-like vocabulary; merges may cross words, which is what pre-tokenizers differ in."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=12,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def train_sentencepiece(**options: object) -> bytes:
    """A Llama-2-like model: BPE with byte tokens, no normalization, a space before texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        **{
            "model_type": "bpe",
            "vocab_size": 420,
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "allow_whitespace_only_pieces": True,
            "split_digits": True,
            "character_coverage": 0.98,
            "minloglevel": 2,
            **options,
        },
    )
    return model.getvalue()
