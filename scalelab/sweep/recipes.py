"""The recipes in `configs/recipes/`, read as files: what each sets otherwise than the defaults, and why, by its own comments."""

import ast
import dataclasses
import functools
import io
import pathlib
import tokenize
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.errors import BadInput, nearest

OURS = "how a long run is watched: ours"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One file. `published`: what its source says of `total`, `tokens`, `flops`; an int is exact, a float rounded as printed."""

    name: str
    path: pathlib.Path
    summary: str  # first line of its docstring
    config: ConfigDict  # resolved
    published: dict[str, float]
    not_reproduced: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Choice:
    """One value that is not the default's, and the comment on the line that sets it ("" where there is none)."""

    key: str
    value: Any
    default: Any
    why: str


def folder() -> pathlib.Path:
    """Where the recipes are."""
    import configs.recipes  # here and not above: it is configuration, not part of the library

    return pathlib.Path(configs.recipes.__file__).parent


def names() -> list[str]:
    """All recipes."""
    return sorted(path.stem for path in folder().glob("*.py") if path.stem != "__init__")


@functools.cache
def find(name: str) -> Recipe:
    """The recipe of this name; BadInput, with the nearest, where there is none."""
    if name not in names():
        raise BadInput(f"no recipe {name!r}{nearest(name, names())}")
    path = folder() / f"{name}.py"
    module = config_lib.load_module(path)
    summary = (module.__doc__ or name).splitlines()[0]
    published = getattr(module, "PUBLISHED", {})
    return Recipe(name, path, summary, config_lib.load(path), published, config_lib.not_reproduced(path))


def choices(recipe: Recipe) -> list[Choice]:
    """What the file sets otherwise than `configs/base.py`, in that file's order; what is derived from it isn't listed."""
    default, found = config_lib.leaves(config_lib.default_tree()), config_lib.leaves(config_lib.read(recipe.path))
    why = _comments(recipe.path)
    return [
        Choice(key, value, default[key], why.get(key) or why.get(key.split(".")[0], OURS))
        for key, value in found.items()
        if value != default[key]
    ]


def _comments(path: pathlib.Path) -> dict[str, str]:
    """`{"optim.peak_lr": comment}` of each `config.optim.peak_lr = …`, and of `config.model = …` under "model"."""
    text = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    said = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                key = ast.unparse(target)
                if key.startswith("config."):
                    found[key.removeprefix("config.")] = said.get(node.lineno, "")
    return found
