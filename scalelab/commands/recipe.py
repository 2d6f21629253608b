"""scalelab recipe                              all recipes
scalelab recipe NAME                         its choices that differ from the defaults, and why; parameters, FLOPs
scalelab recipe NAME --shrink[=WIDTH] [--steps=N] [--out=FILE]

A recipe is a config of a published run, configs/recipes/NAME.py, for `scalelab train`, `schedule`, `optim` and `proxy`.
Each choice is shown with the comment on its line: the paper, table or file it comes from, or that nobody published it.
Parameters are counted by every convention beside the source's own numbers; FLOPs are those of training on all tokens.
What this trainer does not reproduce is listed.

--shrink gives its scaled-down twin: the same choices at width WIDTH (default: 64), two layers, on bytes, for N steps
(default: 500), as a config file that imports the recipe and sets only what differs. It is printed, or written to --out.
The learning rate grows as 1/width, up to 1e-2. To find a recipe's learning rate, use `scalelab proxy`, whose twin keeps
the tokens per parameter.

Exit code: 0 done, 2 bad input.

    scalelab recipe llama3_8b --shrink=64 --out=twin.py
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from scalelab import api
from scalelab.api.defaults import TWIN_STEPS, TWIN_WIDTH
from scalelab.cli.parser import Parser, emit_json, whole_number
from scalelab.errors import BadInput, quote_path

if TYPE_CHECKING:
    from scalelab.sweep.scaling.recipes import Recipe


def main(argv: list[str]) -> int:
    """List, show or shrink recipes; exit codes in the module's docstring."""
    parser = Parser("recipe", __doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a recipe, e.g. llama3_8b (default: list all)")
    parser.add_argument(
        "--shrink", nargs="?", const=str(TWIN_WIDTH), metavar="WIDTH", help="its scaled-down twin as a config file"
    )
    parser.add_argument("--steps", type=whole_number, metavar="N", help=f"steps of the twin (default: {TWIN_STEPS})")
    parser.add_argument("--out", metavar="FILE", help="where to write the twin, a file that ends in .py")
    options = parser.parse_args(argv)

    if options.name is None:
        if options.shrink or options.out:
            names = ", ".join(recipe.name for recipe in api.list_recipes())
            raise BadInput(f"--{'shrink' if options.shrink else 'out'} needs a recipe: {names}")
        return _list(api.list_recipes(), options.json)
    if options.shrink:
        return _shrink(options)
    shown = api.recipe(options.name)
    if options.out or options.steps is not None:
        name = "out" if options.out else "steps"
        raise BadInput(f"--{name} goes with --shrink: a recipe is a file already, which can be copied and changed")
    return _show(shown, options.json)


def _list(recipes: "list[Recipe]", destination: str | None) -> int:
    if destination != "-":
        print(f"{'':<18} {'published':>9} {'tokens':>9}")
        for recipe in recipes:
            total = max((n for key, n in recipe.published.items() if key not in ("tokens", "flops")), default=0)
            sizes = [f"{n:.3g}" if n else "" for n in (total, recipe.published.get("tokens", 0))]
            print(f"{recipe.name:<18} {sizes[0]:>9} {sizes[1]:>9}  {recipe.summary}")
    emit_json(
        [{"name": r.name, "summary": r.summary, "path": str(r.path), "published": r.published} for r in recipes],
        destination,
    )
    return 0


def _shrink(options: Any) -> int:
    steps = TWIN_STEPS if options.steps is None else options.steps
    if not options.shrink.isdecimal() or not int(options.shrink) or steps < 1:
        api.recipe(options.name)
        raise BadInput(f"--shrink={options.shrink} --steps={steps}: a width and a number of steps, e.g. --shrink=64")
    twin = api.shrink_recipe(options.name, int(options.shrink), steps, options.out)
    if twin.out:
        print(f"written: {twin.out}", file=sys.stderr)
    elif options.json != "-":
        print(twin.text, end="")
    emit_json({"recipe": options.name, "out": twin.out, "config": twin.config.to_dict()}, options.json)
    return 0


def _show(shown: "api.RecipeShown", destination: str | None) -> int:
    recipe, result = shown
    if destination != "-":
        print(f"{recipe.name}: {recipe.summary}\n")
        for choice in result["choices"]:
            value, default = (_cell(choice[key]) for key in ("value", "default"))
            print(f"{choice['key']:<30} {f'{value} (default {default})':<34}  {choice['why']}")
        print("\n" + "\n".join(_sizes(result, recipe)))
        if shares := result["data_shares"]:
            print(f"data: {shares['mixture']} ({shares['source']}); not set: --config.data.mixture=… by your sources")
        for text in recipe.not_reproduced:
            print(f"not reproduced: {text}")
        print(f"\nscalelab train --config={quote_path(os.path.relpath(recipe.path))} --workdir=runs/{recipe.name}")
    emit_json(result, destination)
    return 0


def _sizes(result: dict[str, Any], recipe: Any) -> list[str]:
    """Format parameters, tokens and FLOPs, each beside its published value."""

    def published(key: str) -> str:
        value = recipe.published.get(key)
        exact = f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if value else ""
        without = (
            f", without {' and '.join(recipe.active_without)}" if key == "active" and recipe.active_without else ""
        )
        return f" (published: {exact}{without})" if exact else ""

    parameters = [f"{name} {n:,}{published(name)}" for name, n in result["params"].items()]
    flops = [f"{name} {each:.4g}" for name, each in result["flops"].items()]
    params = result["params"]
    which = "active" if params["active"] < params["total"] else "total"
    ratio = result["tokens"] / params[which]
    return [
        "parameters: " + ", ".join(parameters),
        f"tokens: {result['tokens']:.4g}{published('tokens')}, {ratio:.3g} a parameter ({which})",
        "training FLOPs: " + ", ".join(flops) + published("flops"),
        f"schedule: {result['schedule']}",
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return {None: "derived", "": "none"}.get(value, f"{value:,}" if type(value) is int else str(value))
