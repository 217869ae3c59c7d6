"""What GGUF files say of their tokens, whatever splits text into them."""

from pyengine.errors import ModelLoadError
from pyengine.text.sentencepiece_model import BYTE, CONTROL, NORMAL, UNKNOWN
from pyengine.text.tokenizer import Vocabulary
from pyengine.weights.gguf_config import eos_token_ids
from pyengine.weights.gguf_file import GGUFFile


def token_types(file: GGUFFile, num_tokens: int) -> list[int]:
    """The kind of each token, NORMAL and so on.

    Raises:
        ModelLoadError: there are more or fewer of them than tokens, or one is unknown.
    """
    types = file.get_list("tokenizer.ggml.token_type", int)
    if types is None:
        return [NORMAL] * num_tokens
    if len(types) != num_tokens:
        raise ModelLoadError(
            f"{file.path}: broken vocabulary: {num_tokens} tokens, but {len(types)} token types"
        )
    if unknown := set(types).difference(range(NORMAL, BYTE + 1)):
        raise ModelLoadError(f"{file.path}: broken vocabulary: unknown token types {unknown}")
    return types


def gguf_vocabulary(
    file: GGUFFile,
    token_bytes: list[bytes],
    types: list[int],
    *,
    add_bos: bool,
    has_space_prefix: bool,
) -> Vocabulary:
    """What the file says of its tokens.

    Args:
        token_bytes, types: by token id.
        add_bos: whether texts begin with a special token if the file doesn't say.

    Raises:
        ModelLoadError: a token that begins or ends texts isn't among the tokens.
    """
    bos_id = file.get("tokenizer.ggml.bos_token_id", int)
    eos_id = file.get("tokenizer.ggml.eos_token_id", int)
    eos_ids = eos_token_ids(file)
    for token_id in (bos_id, *eos_ids):
        if token_id is not None and not 0 <= token_id < len(token_bytes):
            raise ModelLoadError(
                f"{file.path}: broken vocabulary: the token {token_id} begins or ends texts, "
                f"but there are {len(token_bytes)} tokens"
            )
    special_ids = {i for i, kind in enumerate(types) if kind in (UNKNOWN, CONTROL)}
    special_ids.update(eos_ids if bos_id is None else [bos_id, *eos_ids])
    add_bos = file.get("tokenizer.ggml.add_bos_token", bool, add_bos)
    add_eos = file.get("tokenizer.ggml.add_eos_token", bool, False)
    return Vocabulary(
        token_bytes=token_bytes,
        special_ids=frozenset(special_ids),
        bos_token_id=bos_id,
        eos_token_ids=frozenset(eos_ids),
        bos_token="" if bos_id is None else token_bytes[bos_id].decode(errors="replace"),
        eos_token="" if eos_id is None else token_bytes[eos_id].decode(errors="replace"),
        prefix_ids=[bos_id] if add_bos and bos_id is not None else [],
        suffix_ids=[eos_id] if add_eos and eos_id is not None else [],
        has_space_prefix=has_space_prefix,
        chat_template=file.get("tokenizer.chat_template", str),
    )
