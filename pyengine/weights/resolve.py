"""From what the user calls a model to its files."""

from pathlib import Path

from pyengine.errors import ModelLoadError
from pyengine.weights.demo import DEMO_MODELS, fetch_demo_model
from pyengine.weights.hub import fetch_from_hub, is_hub_name


def resolve_model(name: str, *, revision: str | None = None, show_progress: bool = True) -> Path:
    """The folder or .gguf file of a model, fetched if need be.

    Args:
        name: a folder, a .gguf file, a demo model's name, or a name on the Hugging Face Hub
            ("owner/name", or "owner/name:file.gguf" for one file of it).
        revision: a branch, tag or commit on the Hub; None takes the main branch.
        show_progress: of what is fetched, on stderr.

    Raises:
        ModelLoadError: there is no such model, or it can't be fetched; the message says what to do.
    """
    path = Path(name).expanduser()
    if name and path.exists():
        return path
    if name in DEMO_MODELS:
        return fetch_demo_model(DEMO_MODELS[name], show_progress=show_progress)
    if is_hub_name(name):
        return fetch_from_hub(name, revision=revision, show_progress=show_progress)
    raise ModelLoadError(
        f"{name!r}: no such file or folder; a model is a folder, a .gguf file, a name on the "
        f"Hugging Face Hub, or one of {', '.join(DEMO_MODELS)}"
    )
