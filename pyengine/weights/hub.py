"""Models from the Hugging Face Hub, through its own library and its cache."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from pyengine.errors import ModelLoadError

# "name" or "owner/name", and ":file" for one file of it.
_HUB_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*(?:/[\w-][\w.-]*)?)(?::(?P<file>[^:\\]+\.gguf))?")

# What a model folder needs: configuration, tokenizer, weights; no pickles, nothing in subfolders
# (copies in other formats), not the whole weights that some keep beside the shards.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_UNWANTED = ["*/*", "consolidated*"]


def is_hub_name(name: str) -> bool:
    """Whether a model of this name could be on the Hub."""
    match = _HUB_NAME.fullmatch(name)
    return match is not None and (match["file"] is not None or not name.endswith(".gguf"))


def fetch_from_hub(name: str, *, revision: str | None, show_progress: bool) -> Path:
    """The folder of a model, or one file of it, fetched unless the Hub's cache holds it.

    Args:
        name: for which is_hub_name() holds.
        revision: a branch, tag or commit; None takes the main branch.
        show_progress: on stderr.

    Raises:
        ModelLoadError: the Hub doesn't have it or doesn't give it, or can't be reached and the
            cache doesn't hold it.
    """
    # Here, because it takes half a second, which local models need not wait for.
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_download, snapshot_download

    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no name on the Hub")
    repo, file = match["repo"], match["file"]
    try:
        with _progress_bars(show_progress):
            if file is not None:
                return Path(hf_hub_download(repo, file, revision=revision))
            path = Path(
                snapshot_download(
                    repo, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
                )
            )
    except hub.GatedRepoError as error:
        raise ModelLoadError(
            f"{repo}: its owners ask for an agreement first: give it on the model's page on the "
            "Hub, then run `hf auth login`, or set HF_TOKEN"
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"{repo}: there is neither such a file or folder here, nor such a model on the Hub; if "
            "it is private, run `hf auth login`, or set HF_TOKEN"
        ) from error
    except hub.RevisionNotFoundError as error:
        raise ModelLoadError(f"{repo}: the model on the Hub has no revision {revision}") from error
    except hub.LocalEntryNotFoundError as error:
        raise ModelLoadError(
            f"{name}: there is no such file or folder here, the Hub can't be reached (or "
            "HF_HUB_OFFLINE is set), and its cache doesn't hold the model: check the network, or "
            f"fetch it elsewhere and pass its path ({_first_line(error)})"
        ) from error
    except hub.EntryNotFoundError as error:
        raise ModelLoadError(f"{repo}: the model on the Hub has no file {file}") from error
    except Exception as error:  # the library lets those of its HTTP client through, which vary
        raise ModelLoadError(
            f"{name}: can't be fetched from the Hub: {_first_line(error)}"
        ) from error
    if not (path / "config.json").exists():
        raise ModelLoadError(
            f"{repo}: the model on the Hub has no config.json; if it has GGUF files, name one, "
            f"as in {repo}:FILE.gguf"
        )
    return path


@contextlib.contextmanager
def _progress_bars(show: bool) -> Iterator[None]:
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if show or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
