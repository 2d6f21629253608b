"""The recipes in `configs/recipes/`, read as files: which values differ from the defaults, and why (by comments)."""

import ast
import dataclasses
import functools
import io
import pathlib
import tokenize
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import optimizer_defaults
from scalelab.errors import BadInput, nearest_hint
from scalelab.untrusted.files import read_text

WATCH_COMMENTS = dict.fromkeys(
    ("train.steps_per_dispatch", "eval.every_steps", "eval.batches", "checkpoint.every_steps", "checkpoint.keep_every"),
    "how a long run is monitored: our choice",
)
SIZE_KEYS = ("model.d_model", "model.n_layers", "model.n_heads")  # the arguments of presets in configs/base.py


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One recipe file.

    `published`: its source's numbers of `total`, `active`, `tokens`, `flops`; an int is exact, a float rounded as
    printed.
    """

    name: str
    path: pathlib.Path
    summary: str  # first line of its docstring
    config: ConfigDict  # resolved
    published: dict[str, float]
    not_reproduced: tuple[str, ...]
    active_without: tuple[str, ...] = ()  # groups of parameters that the published `active` leaves out
    data_shares: tuple[str, str] | None = None  # published shares of tokens, as a `data.mixture`, and their source


@dataclasses.dataclass(frozen=True)
class RecipeChoice:
    """One value that differs from the default, and the comment on the line that sets it ("" if there is none)."""

    key: str
    value: Any
    default: Any
    why: str


def recipes_folder() -> pathlib.Path:
    """The folder of the recipes."""
    from scalelab.configs import recipes  # imported here: it is configuration, not part of the library

    return pathlib.Path(recipes.__file__).parent


def list_recipes() -> list[str]:
    """The names of all recipes, sorted."""
    return sorted(path.stem for path in recipes_folder().glob("*.py") if path.stem != "__init__")


@functools.cache
def find_recipe(name: str) -> Recipe:
    """Load the recipe of this name; BadInput, with the nearest name, if there is none."""
    if name not in list_recipes():
        raise BadInput(f"no recipe {name!r}{nearest_hint(name, list_recipes())}")
    path = recipes_folder() / f"{name}.py"
    module = config_lib.load_config_module(path)
    summary = (module.__doc__ or name).splitlines()[0]
    published = getattr(module, "PUBLISHED", {})
    lacks, without = config_lib.list_not_reproduced(path), getattr(module, "ACTIVE_WITHOUT", ())
    shares = getattr(module, "DATA_SHARES", None)
    return Recipe(name, path, summary, config_lib.load(path), published, lacks, without, shares)


def list_choices(recipe: Recipe) -> list[RecipeChoice]:
    """List values that differ from `configs/base.py` and the optimizer's defaults; derived values are not listed."""
    optim_values = optimizer_defaults.default_optim_values(recipe.config.optim.name)
    default = config_lib.default_values() | {f"optim.{key}": value for key, (value, _) in optim_values.items()}
    why = WATCH_COMMENTS | _comments(recipe.path)
    return [
        RecipeChoice(key, value, default[key], why.get(key, why["preset"] if key.startswith("model.") else ""))
        for key, value in config_lib.leaves(config_lib.read_config_file(recipe.path)).items()
        if value is not None and value != default[key]
    ]


def _comments(path: pathlib.Path) -> dict[str, str]:
    """{key: comment} of each line `config.KEY = …`.

    The comment of `config.model = base.llama(…)` is that of SIZE_KEYS; "preset" is the first docstring line of the
    preset.
    """
    text = read_text(path, follow=True)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    by_line = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    comments = {"preset": ""}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and (key := ast.unparse(node.targets[0])).startswith("config."):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)  # a formatter may have split the line
            comment = " ".join(by_line[line] for line in lines if line in by_line)
            comments[key.removeprefix("config.")] = comment
            if key == "config.model":
                callee = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
                comments |= dict.fromkeys(SIZE_KEYS, comment) | {"preset": _preset(callee)}
    return comments


def _preset(callee: str) -> str:
    """`base.gpt2: …`, with the first docstring line of that preset; "" if `callee` is not a preset."""
    from scalelab.configs import base

    module, _, name = callee.rpartition(".")
    function = getattr(base, name, None) if module == "base" else None
    return f"{callee}: {(function.__doc__ or '').splitlines()[0]}" if function else ""
