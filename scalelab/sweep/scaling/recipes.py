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
from scalelab.config import optimizer_defaults
from scalelab.errors import BadInput, nearest_hint

WATCH_COMMENTS = dict.fromkeys(
    ("train.steps_per_dispatch", "eval.every_steps", "eval.batches", "checkpoint.every_steps", "checkpoint.keep_every"),
    "how a long run is watched: ours",
)
SIZE_KEYS = ("model.d_model", "model.n_layers", "model.n_heads")  # what a preset of configs/base.py is called with


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
class RecipeChoice:
    """One value that is not the default's, and the comment on the line that sets it ("" where there is none)."""

    key: str
    value: Any
    default: Any
    why: str


def recipes_folder() -> pathlib.Path:
    """Where the recipes are."""
    import configs.recipes  # here and not above: it is configuration, not part of the library

    return pathlib.Path(configs.recipes.__file__).parent


def list_recipes() -> list[str]:
    """All recipes."""
    return sorted(path.stem for path in recipes_folder().glob("*.py") if path.stem != "__init__")


@functools.cache
def find_recipe(name: str) -> Recipe:
    """The recipe of this name; BadInput, with the nearest, where there is none."""
    if name not in list_recipes():
        raise BadInput(f"no recipe {name!r}{nearest_hint(name, list_recipes())}")
    path = recipes_folder() / f"{name}.py"
    module = config_lib.load_config_module(path)
    summary = (module.__doc__ or name).splitlines()[0]
    published = getattr(module, "PUBLISHED", {})
    return Recipe(name, path, summary, config_lib.load(path), published, config_lib.list_not_reproduced(path))


def list_choices(recipe: Recipe) -> list[RecipeChoice]:
    """What the file sets otherwise than `configs/base.py` and its optimizer's own values; what is derived isn't listed."""
    own_values = optimizer_defaults.default_optim_values(recipe.config.optim.name)
    default = config_lib.default_values() | {f"optim.{key}": value for key, (value, _) in own_values.items()}
    why = WATCH_COMMENTS | _comments(recipe.path)
    return [
        RecipeChoice(key, value, default[key], why.get(key, why["preset"] if key.startswith("model.") else ""))
        for key, value in config_lib.leaves(config_lib.read_config_file(recipe.path)).items()
        if value is not None and value != default[key]
    ]


def _comments(path: pathlib.Path) -> dict[str, str]:
    """`{"optim.peak_lr": comment}` of each `config.optim.peak_lr = …`; of `config.model = base.llama(…)` the comment for what
    it is called with, and under "preset" what the preset says of itself.
    """
    text = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    said = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    found = {"preset": ""}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and (key := ast.unparse(node.targets[0])).startswith("config."):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)  # a formatter may have put it in brackets
            comment = " ".join(said[line] for line in lines if line in said)
            found[key.removeprefix("config.")] = comment
            if key == "config.model":
                called = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
                found |= dict.fromkeys(SIZE_KEYS, comment) | {"preset": _preset(called)}
    return found


def _preset(called: str) -> str:
    """`base.gpt2` -> what its docstring says."""
    from configs import base

    module, _, name = called.rpartition(".")
    function = getattr(base, name, None) if module == "base" else None
    return f"{called}: {(function.__doc__ or '').splitlines()[0]}" if function else ""
