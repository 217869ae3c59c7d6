"""Writes small GGUF files with a tokenizer in them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gguf import GGUFWriter


def write_gguf(path: Path, add: Callable[[GGUFWriter], None]) -> Path:
    """A file of the metadata that `add` adds, without tensors."""
    writer = GGUFWriter(path, "llama")
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_bpe(
    path: Path,
    pre: str | None,
    tokens: Sequence[str],
    merges: Sequence[str],
    special: Mapping[str, int],
    **ids_and_flags: int | bool,
) -> Path:
    """
    Args:
        special: token -> its type, after the ordinary tokens.
        ids_and_flags: further tokenizer.ggml.* keys.
    """

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list([*tokens, *special])
        writer.add_token_types([1] * len(tokens) + list(special.values()))
        writer.add_token_merges(list(merges))
        for key, value in ids_and_flags.items():
            (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(
                f"tokenizer.ggml.{key}", value
            )

    return write_gguf(path, add)
