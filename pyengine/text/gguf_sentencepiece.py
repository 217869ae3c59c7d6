"""Vocabularies of sentencepiece out of GGUF files."""

from pyengine.errors import ModelLoadError
from pyengine.text.folder_settings import AddedToken
from pyengine.text.gguf_vocabulary import gguf_vocabulary, token_types
from pyengine.text.sentencepiece_model import SPACE, USER_DEFINED, bpe_model
from pyengine.text.sentencepiece_tokenizer import SentencePieceTokenizer, open_model, piece_bytes
from pyengine.text.tokenizer import Tokenizer
from pyengine.weights.gguf_file import GGUFFile


def load_gguf_sentencepiece(file: GGUFFile) -> Tokenizer:
    """A vocabulary with scores ("llama"), turned into the model that sentencepiece reads.

    Raises:
        ModelLoadError: it is broken.
    """
    tokens = file.require_list("tokenizer.ggml.tokens", str)
    scores = file.require_list("tokenizer.ggml.scores", float)
    types = token_types(file, len(tokens))
    if len(scores) != len(tokens):
        raise ModelLoadError(
            f"{file.path}: broken vocabulary: {len(tokens)} tokens, but {len(scores)} scores"
        )
    has_space_prefix = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    model = bpe_model(
        # User-defined tokens have their spaces spelled out, others as in the model.
        [
            token.replace(" ", SPACE) if kind == USER_DEFINED else token
            for token, kind in zip(tokens, types, strict=True)
        ],
        scores,
        types,
        add_dummy_prefix=has_space_prefix,
        remove_extra_whitespaces=file.get("tokenizer.ggml.remove_extra_whitespaces", bool, False),
    )
    token_bytes = piece_bytes(open_model(file.path, model))
    vocabulary = gguf_vocabulary(
        file, token_bytes, types, add_bos=True, has_space_prefix=has_space_prefix
    )
    special = {i: AddedToken(text=tokens[i], special=True) for i in vocabulary.special_ids}
    return SentencePieceTokenizer(model, vocabulary, special, space_after_special=True)
