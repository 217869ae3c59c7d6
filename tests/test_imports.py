"""Imports go one way: server, cli -> engine -> models, sampling, text, weights -> ops -> C++."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyengine

PACKAGE = Path(pyengine.__file__).parent
REPOSITORY = PACKAGE.parent

# What a part of the package may import of the rest of it, besides itself. `BASE` is plain data.
BASE = {"errors", "config", "sampling_params", "outputs"}
MODEL_PARTS = {"models", "sampling", "structured", "text", "weights"}
ALLOWED = {
    "_build": set(),
    "_loader": {"_core"},
    "errors": set(),
    "config": BASE,
    "sampling_params": BASE,
    "outputs": BASE,
    "ops": {"_loader"},
    "text": BASE | {"weights"},  # a GGUF file holds its tokenizer too
    "weights": BASE | {"ops"},
    "models": BASE | {"ops", "weights"},
    "sampling": BASE | {"ops"},
    "structured": BASE | {"text"},
    "engine": BASE | MODEL_PARTS | {"ops", "_loader", "_core", "__version__"},
    "verify": BASE | {"engine", "models"},
    "llm": BASE | MODEL_PARTS | {"engine"},
    "server": BASE | {"engine", "text", "models", "__version__"},
    "cli": BASE
    | {"engine", "llm", "ops", "server", "text", "verify", "weights", "LLM", "__version__"},
    "__main__": {"cli"},
}
# A module, and what it must do without: some run where the heavy package has no business.
FORBIDDEN = {
    "engine/scheduler.py": {"torch", "numpy"},
    "engine/kv_cache.py": {"torch", "numpy"},
    "engine/sequence.py": {"torch", "numpy"},
    "text": {"torch", "aiohttp"},
    "structured": {"torch", "numpy", "aiohttp"},
    "server": {"torch", "numpy"},
    "cli": {"torch", "numpy", "aiohttp", "pydantic"},
    "models": {"aiohttp", "pydantic", "tokenizers"},
    "engine": {"aiohttp", "pydantic", "tokenizers"},
    "_build.py": {"torch", "numpy", "setuptools"},
}


def _modules(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _imports(module: Path) -> Iterator[tuple[str, int]]:
    """Every name that a module imports, with its line: `from pyengine import ops` and
    `import pyengine.ops` are both pyengine.ops. Imports for type checkers alone are left out."""
    pending: list[ast.AST] = [ast.parse(module.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno
        pending += ast.iter_child_nodes(node)


def test_every_part_of_the_package_has_its_place_in_the_order() -> None:
    parts = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert parts - {"__init__"} == set(ALLOWED)


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_no_import_goes_upward(part: str) -> None:
    path = PACKAGE / part
    for module in _modules(path if path.is_dir() else path.with_suffix(".py")):
        for name, line in _imports(module):
            package, _, rest = name.partition(".")
            if package != "pyengine":
                continue
            imported = rest.split(".")[0] or "__version__"  # what a bare `import pyengine` is for
            assert imported in ALLOWED[part] | {part}, (
                f"{module.relative_to(REPOSITORY)}:{line}: {part} must not import {imported}"
            )


@pytest.mark.parametrize("where", sorted(FORBIDDEN))
def test_no_module_imports_a_package_that_it_must_do_without(where: str) -> None:
    for module in _modules(PACKAGE / where):
        for name, line in _imports(module):
            package = name.split(".")[0]
            assert package not in FORBIDDEN[where], (
                f"{module.relative_to(REPOSITORY)}:{line}: must not import {package}"
            )
