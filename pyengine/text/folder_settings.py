"""What a Hugging Face folder says of its tokenizer besides the tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.weights.files import read_json_if_there, read_text


@dataclass(frozen=True, kw_only=True)
class AddedToken:
    """A token that was added to a finished vocabulary."""

    text: str
    special: bool


@dataclass(frozen=True, kw_only=True)
class FolderSettings:
    """The settings in tokenizer_config.json and the files around it."""

    bos_token: str  # empty if there is none
    eos_token: str
    # For sentencepiece; a tokenizer.json settles these by itself.
    add_bos: bool  # whether texts begin with bos_token, and end with eos_token
    add_eos: bool
    add_prefix_space: bool  # a space before the text's first word
    legacy: bool  # a space after each special token in the text too
    added_tokens: dict[int, AddedToken]
    eos_token_ids: frozenset[int]  # of the model's configuration
    chat_template: str | None


def read_folder_settings(path: Path) -> FolderSettings:
    """
    Raises:
        ModelLoadError: a file is broken.
    """
    config = read_json_if_there(path / "tokenizer_config.json")
    roles = read_json_if_there(path / "special_tokens_map.json")
    return FolderSettings(
        bos_token=_token_text(config.get("bos_token") or roles.get("bos_token")),
        eos_token=_token_text(config.get("eos_token") or roles.get("eos_token")),
        add_bos=config.get("add_bos_token") is not False,
        add_eos=config.get("add_eos_token") is True,
        add_prefix_space=config.get("add_prefix_space") is not False,
        legacy=config.get("legacy") is not False,
        added_tokens=_added_tokens(path, config),
        eos_token_ids=_eos_token_ids(path),
        chat_template=_chat_template(path, config),
    )


def _token_text(token: str | dict[str, Any] | None) -> str:
    """Tokens are given as text, or as an object with all properties of an added token."""
    return str(token["content"]) if isinstance(token, dict) else token or ""


def _added_tokens(path: Path, config: dict[str, Any]) -> dict[int, AddedToken]:
    # Older folders: added_tokens.json has text -> id, another file the roles of the special ones.
    roles = read_json_if_there(path / "special_tokens_map.json")
    roles_of_several = roles.pop("additional_special_tokens", [])
    special = set(map(_token_text, [*roles.values(), *roles_of_several]))
    added = {
        token_id: AddedToken(text=text, special=text in special)
        for text, token_id in read_json_if_there(path / "added_tokens.json").items()
    }
    try:
        for token_id, token in config.get("added_tokens_decoder", {}).items():
            added[int(token_id)] = AddedToken(
                text=token["content"], special=bool(token.get("special"))
            )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(
            f"{path / 'tokenizer_config.json'}: broken added_tokens_decoder: {error!r}"
        ) from error
    return added


def _eos_token_ids(path: Path) -> frozenset[int]:
    """The union over the model's files: each may know of other ends of an answer."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = read_json_if_there(path / name).get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(ids)


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    """A file of its own, or in the configuration: one template, or several with names."""
    if (path / "chat_template.jinja").exists():
        return read_text(path / "chat_template.jinja")
    template = config.get("chat_template")
    if isinstance(template, list):
        by_name = {entry.get("name"): entry.get("template") for entry in template}
        template = by_name.get("default")
    return template
