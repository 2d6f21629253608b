"""The recipes of published runs, and their scaled-down twins."""

import pathlib
from typing import TYPE_CHECKING, NamedTuple

from scalelab import config as config_lib
from scalelab.api.arguments import ANY_PATH, Facts, Path, check_arguments, optional, whole
from scalelab.api.defaults import TWIN_STEPS, TWIN_WIDTH
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput
from scalelab.sweep.scaling import recipes

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from scalelab.sweep.scaling.recipes import Recipe


def list_recipes() -> "list[Recipe]":
    """The recipes of published runs (`scalelab recipe`)."""
    return [recipes.find_recipe(name) for name in recipes.list_recipes()]


class RecipeShown(NamedTuple):
    """A recipe: choices with sources, parameters, tokens and FLOPs, as the command's --json prints them."""

    recipe: "Recipe"
    facts: Facts


@check_arguments()
def recipe(name: str) -> RecipeShown:
    """A published recipe: every choice with its source (`scalelab recipe NAME`)."""
    from scalelab.model import count

    chosen = recipes.find_recipe(name)
    config, shape = chosen.config, config_lib.static(chosen.config).model
    tokens = schedule_steps.tokens_before(config, config.train.steps)
    facts = {
        "name": chosen.name,
        "summary": chosen.summary,
        "path": str(chosen.path),
        "choices": [vars(choice) for choice in recipes.list_choices(chosen)],
        "params": count.count_parameters(shape),
        "tokens": tokens,
        "flops": {convention: each * tokens for convention, each in count.flops_per_token(shape).items()},
        "published": chosen.published,
        "active_without": list(chosen.active_without),
        "data_shares": chosen.data_shares and dict(zip(("mixture", "source"), chosen.data_shares, strict=True)),
        "schedule": schedule_steps.describe_schedule(config),
        "not_reproduced": list(chosen.not_reproduced),
    }
    return RecipeShown(chosen, facts)


class Twin(NamedTuple):
    """The scaled-down twin of a recipe: its config, the text of its file, and where that was written, if it was."""

    config: "ConfigDict"
    text: str
    out: str | None


@check_arguments(width=whole(1), steps=whole(1), out=optional(ANY_PATH))
def shrink_recipe(name: str, width: int = TWIN_WIDTH, steps: int = TWIN_STEPS, out: Path | None = None) -> Twin:
    """A recipe's choices at a small width, on bytes, as a config file (`scalelab recipe NAME --shrink`)."""
    from scalelab.sweep.forks import fork_text, write_forks
    from scalelab.sweep.scaling.shrink import shrink_recipe as shrink

    chosen = recipes.find_recipe(name)
    twin = shrink(chosen.config, width, steps)
    title = f"The scaled-down twin of {chosen.name}: width {twin.model.d_model}, {twin.train.steps} steps on bytes."
    path = pathlib.Path(out or f"{chosen.name}_small.py")
    if path.suffix != ".py" or path.resolve() == chosen.path.resolve():
        raise BadInput(f"--out={path} must be a new file that ends in .py")
    if out:
        write_forks(path.parent, chosen.path, {path.stem: twin}, {path.stem: title})
    return Twin(twin, fork_text(path, chosen.path, twin, title), str(out) if out else None)
