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
import pathlib
import sys
from typing import Any

from scalelab.cli.parser import Parser, emit_json, whole_number
from scalelab.errors import BadInput, quote_path

TWIN_STEPS = 500


def main(argv: list[str]) -> int:
    """List, show or shrink recipes; exit codes in the module's docstring."""
    parser = Parser("recipe", __doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a recipe, e.g. llama3_8b (default: list all)")
    parser.add_argument(
        "--shrink", nargs="?", const="64", metavar="WIDTH", help="its scaled-down twin as a config file"
    )
    parser.add_argument("--steps", type=whole_number, metavar="N", help=f"steps of the twin (default: {TWIN_STEPS})")
    parser.add_argument("--out", metavar="FILE", help="where to write the twin, a file that ends in .py")
    options = parser.parse_args(argv)

    from scalelab.sweep.scaling import recipes

    if options.name is None:
        if options.shrink or options.out:
            raise BadInput(
                f"--{'shrink' if options.shrink else 'out'} needs a recipe: {', '.join(recipes.list_recipes())}"
            )
        return _list(options.json)
    recipe = recipes.find_recipe(options.name)
    if options.shrink:
        return _shrink(recipe, options)
    if options.out or options.steps is not None:
        name = "out" if options.out else "steps"
        raise BadInput(f"--{name} goes with --shrink: a recipe is a file already, which can be copied and changed")
    return _show(recipe, options.json)


def _list(destination: str | None) -> int:
    from scalelab.sweep.scaling import recipes

    listed = [recipes.find_recipe(name) for name in recipes.list_recipes()]
    if destination != "-":
        print(f"{'':<18} {'published':>9} {'tokens':>9}")
        for recipe in listed:
            total = max((n for key, n in recipe.published.items() if key not in ("tokens", "flops")), default=0)
            sizes = [f"{n:.3g}" if n else "" for n in (total, recipe.published.get("tokens", 0))]
            print(f"{recipe.name:<18} {sizes[0]:>9} {sizes[1]:>9}  {recipe.summary}")
    emit_json(
        [{"name": r.name, "summary": r.summary, "path": str(r.path), "published": r.published} for r in listed],
        destination,
    )
    return 0


def _shrink(recipe: Any, options: Any) -> int:
    from scalelab.sweep.forks import fork_text, write_forks
    from scalelab.sweep.scaling.shrink import shrink_recipe

    steps = TWIN_STEPS if options.steps is None else options.steps
    if not options.shrink.isdecimal() or steps < 1:
        raise BadInput(f"--shrink={options.shrink} --steps={steps}: a width and a number of steps, e.g. --shrink=64")
    twin = shrink_recipe(recipe.config, int(options.shrink), steps)
    title = f"The scaled-down twin of {recipe.name}: width {twin.model.d_model}, {twin.train.steps} steps on bytes."
    path = pathlib.Path(options.out or f"{recipe.name}_small.py")
    if path.suffix != ".py" or path.resolve() == recipe.path.resolve():
        raise BadInput(f"--out={path} must be a new file that ends in .py")
    if options.out:
        write_forks(path.parent, recipe.path, {path.stem: twin}, {path.stem: title})
        print(f"written: {path}", file=sys.stderr)
    elif options.json != "-":
        print(fork_text(path, recipe.path, twin, title), end="")
    emit_json({"recipe": recipe.name, "out": options.out, "config": twin.to_dict()}, options.json)
    return 0


def _show(recipe: Any, destination: str | None) -> int:
    result = _facts(recipe)
    if destination != "-":
        print(f"{recipe.name}: {recipe.summary}\n")
        for choice in result["choices"]:
            value, default = (_cell(choice[key]) for key in ("value", "default"))
            print(f"{choice['key']:<30} {f'{value} (default {default})':<34}  {choice['why']}")
        print("\n" + "\n".join(_sizes(result, recipe)))
        for text in recipe.not_reproduced:
            print(f"not reproduced: {text}")
        print(f"\nscalelab train --config={quote_path(os.path.relpath(recipe.path))} --workdir=runs/{recipe.name}")
    emit_json(result, destination)
    return 0


def _facts(recipe: Any) -> dict[str, Any]:
    """The object that `--json` prints."""
    from scalelab import config as config_lib
    from scalelab.config import schedule_steps
    from scalelab.model import count
    from scalelab.sweep.scaling import recipes

    config, shape = recipe.config, config_lib.static(recipe.config).model
    tokens = schedule_steps.tokens_before(config, config.train.steps)
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "path": str(recipe.path),
        "choices": [vars(choice) for choice in recipes.list_choices(recipe)],
        "parameters": count.count_parameters(shape),
        "tokens": tokens,
        "flops": {convention: each * tokens for convention, each in count.flops_per_token(shape).items()},
        "published": recipe.published,
        "schedule": schedule_steps.describe_schedule(config),
        "not_reproduced": list(recipe.not_reproduced),
    }


def _sizes(result: dict[str, Any], recipe: Any) -> list[str]:
    """Parameters, tokens and FLOPs, each beside its published value."""

    def published(key: str) -> str:
        value = recipe.published.get(key)
        exact = f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if value else ""
        return f" (published: {exact})" if exact else ""

    parameters = [f"{name} {n:,}{published(name)}" for name, n in result["parameters"].items()]
    flops = [f"{name} {each:.4g}" for name, each in result["flops"].items()]
    ratio = result["tokens"] / result["parameters"]["total"]
    return [
        "parameters: " + ", ".join(parameters),
        f"tokens: {result['tokens']:.4g}{published('tokens')}, {ratio:.3g} a parameter (total)",
        "training FLOPs: " + ", ".join(flops) + published("flops"),
        f"schedule: {result['schedule']}",
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return {None: "derived", "": "none"}.get(value, f"{value:,}" if type(value) is int else str(value))
