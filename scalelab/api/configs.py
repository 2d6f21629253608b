"""Configs looked at: keys, values, optimizer groups, schedules, recipes, and which activations grow."""

import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scalelab.api.arguments import (
    ANY_PATH,
    ANYTHING,
    FUNCTION,
    OVERRIDES,
    TEXT,
    Facts,
    Path,
    check_arguments,
    optional,
    several,
    whole,
)
from scalelab.api.defaults import TWIN_STEPS, TWIN_WIDTH
from scalelab.api.door import (
    Config,
    Display,
    Overrides,
    Progress,
    cache_programs,
    config_path,
    load_config,
    never,
    plain_display,
    silent,
)
from scalelab.config.files import USER_OPTIM_PREFIX
from scalelab.config.keys import Key, key_records
from scalelab.errors import BadInput, nearest_hint

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from scalelab.config.changes import ConfigValue
    from scalelab.optim.table import OptimizerRow
    from scalelab.sweep.scaling.recipes import Recipe

DEFAULT_WIDTHS = (64, 128, 256, 512, 1024)
CURVE_POINTS = 1000  # points of a drawn schedule


@check_arguments(keys=several(TEXT))
def config_keys(keys: str | Sequence[str] = ()) -> dict[str, Key]:
    """Keys of the config with default, unit, range, meaning and source (`scalelab config`): all, or those of groups."""
    return {name: key_records()[name] for name in _select_keys(list(keys))}


def _select_keys(selected: Sequence[str]) -> list[str]:
    """The keys that are asked for, in the order of `configs/base.py`; all if nothing is. Raises BadInput."""
    names = list(key_records())
    groups = list(dict.fromkeys(name.split(".")[0] for name in names))
    selection = {USER_OPTIM_PREFIX[:-1] if name.startswith(USER_OPTIM_PREFIX) else name for name in selected}
    for name in selected:
        if name not in (*names, *groups) and not name.startswith(USER_OPTIM_PREFIX):
            raise BadInput(f"unknown config key {name!r}{nearest_hint(name, [*names, *groups])}")
    return [name for name in names if not selected or selection & {name, name.split(".")[0]}]


class ConfigShown(NamedTuple):
    """A config's identity, and its values with default and author: those it changes, or those asked for."""

    identity: str
    values: "list[ConfigValue]"


@check_arguments(config=ANYTHING, keys=several(TEXT), overrides=OVERRIDES)
def show_config(config: Path, keys: str | Sequence[str] = (), overrides: Overrides | None = None) -> ConfigShown:
    """What a config file changes against the defaults, and who set each value (`scalelab config --config`).

    `keys`: keys or groups whose values are shown whether or not they were changed.
    """
    from scalelab.config.changes import load_with_origins
    from scalelab.config.resolve import identity

    selected = _select_keys(list(keys)) if keys else None
    resolved, values = load_with_origins(config_path(config), overrides or {})
    if selected is None:
        shown = [value for value in values if value.value != value.default]
    else:
        shown = [value for value in values if {value.key, value.key.rpartition(".")[0]} & {*selected}]
    return ConfigShown(identity(resolved), shown)


class OptimShown(NamedTuple):
    """What each group of parameters gets, of which config, and who set its values."""

    config: "ConfigDict"
    rows: "list[OptimizerRow]"
    origins: Mapping[str, str]


@check_arguments(config=ANYTHING, overrides=OVERRIDES)
def optim(config: Config, overrides: Overrides | None = None) -> OptimShown:
    """Optimizer, learning-rate factor, decay and state of each group of parameters (`scalelab optim`)."""
    resolved = load_config(config, overrides)
    from scalelab import config as config_lib
    from scalelab.optim import chain, table

    origins = config_lib.config_value_origins(resolved)
    chain.check_optimizer_options(config_lib.static(resolved))
    rows = table.optimizer_rows(config_lib.static(resolved), config_lib.hparams(resolved))
    return OptimShown(resolved, rows, origins)


class Scheduled(NamedTuple):
    """The scheduled values of a config at steps: a row a step."""

    config: "ConfigDict"
    rows: list[Facts]


@check_arguments(config=ANYTHING, overrides=OVERRIDES, show_steps=optional(several(whole(0))))
def schedule(
    config: Config, overrides: Overrides | None = None, *, show_steps: int | Sequence[int] | None = None
) -> Scheduled:
    """Learning rate, momentum, decay and batch at steps, by default where they bend (`scalelab schedule`)."""
    from scalelab.config.steps import schedule_steps

    resolved = load_config(config, overrides)
    if show_steps is None:
        return Scheduled(resolved, _schedule_rows(resolved, schedule_steps.landmark_steps(resolved)))
    steps, n_steps = [show_steps] if isinstance(show_steps, int) else list(show_steps), resolved.train.steps
    for step in steps:
        if step >= n_steps:
            raise BadInput(
                f"--show-steps={','.join(map(str, steps))}: the run has {n_steps} steps, so its last is {n_steps - 1}, "
                f"and {step} is not one of them"
            )
    return Scheduled(resolved, _schedule_rows(resolved, steps))


@check_arguments(scheduled=ANYTHING, plot=ANY_PATH)
def draw_schedule(scheduled: Scheduled, plot: Path) -> list[str]:
    """Draw the whole run of a `schedule`, its steps marked, as .pdf with its CSV, or .png (`schedule --plot`)."""
    from scalelab.config.steps import schedule_steps
    from scalelab.report.figures import scheduleplot

    if not isinstance(scheduled, Scheduled):
        raise BadInput(f"scheduled={str(scheduled)[:60]} is not what `scalelab.api.schedule` returns")
    config, marked = scheduled.config, [row["step"] for row in scheduled.rows]
    last = config.train.steps - 1
    even = [round(i * last / (CURVE_POINTS - 1)) for i in range(CURVE_POINTS)]
    steps = sorted({*even, *marked, *schedule_steps.landmark_steps(config)})
    return scheduleplot.write_schedule_figure(os.fspath(plot), _schedule_rows(config, steps), marked)


def _schedule_rows(config: "ConfigDict", steps: Sequence[int]) -> list[Facts]:
    from scalelab.config.steps import schedule_steps
    from scalelab.optim import schedules

    curves, seen = schedules.schedule_curves(config, steps), functools.partial(schedule_steps.tokens_before, config)
    return [
        {"step": step, "tokens": seen(step)} | {key: curve[i].item() for key, curve in curves.items()}
        | {"batch_tokens": seen(step + 1) - seen(step)}
        for i, step in enumerate(steps)
    ]  # fmt: skip


def list_recipes() -> "list[Recipe]":
    """The recipes of published runs (`scalelab recipe`)."""
    from scalelab.sweep.scaling import recipes

    return [recipes.find_recipe(name) for name in recipes.list_recipes()]


class RecipeShown(NamedTuple):
    """A recipe, and its choices with sources, parameters, tokens and FLOPs as the command's --json prints them."""

    recipe: "Recipe"
    facts: Facts


@check_arguments(name=TEXT)
def recipe(name: str) -> RecipeShown:
    """A published recipe: every choice with its source (`scalelab recipe NAME`)."""
    from scalelab import config as config_lib
    from scalelab.config.steps import schedule_steps
    from scalelab.model import count
    from scalelab.sweep.scaling import recipes

    chosen = recipes.find_recipe(name)
    config, shape = chosen.config, config_lib.static(chosen.config).model
    tokens = schedule_steps.tokens_before(config, config.train.steps)
    facts = {
        "name": chosen.name,
        "summary": chosen.summary,
        "path": str(chosen.path),
        "choices": [vars(choice) for choice in recipes.list_choices(chosen)],
        "parameters": count.count_parameters(shape),
        "tokens": tokens,
        "flops": {convention: each * tokens for convention, each in count.flops_per_token(shape).items()},
        "published": chosen.published,
        "schedule": schedule_steps.describe_schedule(config),
        "not_reproduced": list(chosen.not_reproduced),
    }
    return RecipeShown(chosen, facts)


class Twin(NamedTuple):
    """The scaled-down twin of a recipe: its config, the text of its file, and where that was written, if it was."""

    config: "ConfigDict"
    text: str
    out: str | None


@check_arguments(name=TEXT, width=whole(1), steps=whole(1), out=optional(ANY_PATH))
def shrink_recipe(name: str, width: int = TWIN_WIDTH, steps: int = TWIN_STEPS, out: Path | None = None) -> Twin:
    """A recipe's choices at a small width, on bytes, as a config file (`scalelab recipe NAME --shrink`)."""
    from scalelab.sweep.forks import fork_text, write_forks
    from scalelab.sweep.scaling import recipes
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


@check_arguments(
    config=ANYTHING, overrides=OVERRIDES, widths=several(whole(1)), depths=several(whole(1)), steps=whole(1),
    seeds=whole(1), batch=whole(1), progress=FUNCTION, display=optional(FUNCTION),
)  # fmt: skip
def coordcheck(
    config: Config, overrides: Overrides | None = None, *, widths: Sequence[int] = (), depths: Sequence[int] = (),
    steps: int = 4, seeds: int = 2, batch: int = 4, progress: Progress = silent, display: Display | None = None,
) -> Facts:  # fmt: skip
    """Train a few steps at several sizes: which activations grow with width or depth (`scalelab coordcheck --json`)."""
    from scalelab.train import coordcheck as coordcheck_lib
    from scalelab.train.single import load_run_dataset

    resolved = load_config(config, overrides)
    sizes = _sizes(resolved, widths, depths)
    cache_programs()
    data, numbers = load_run_dataset(resolved), range(resolved.train.seed, resolved.train.seed + seeds)
    checks = []
    for axis, configs in sizes.items():
        tokens = f"{batch} x {resolved.model.seq_len} tokens"
        names = ", ".join(map(str, configs))
        progress({"note": f"{axis} {names}: {steps} steps of {tokens}, {len(numbers)} seed(s) each"})
        title = f"coordcheck over {axis}"
        with (display or plain_display(progress, never))(title, {title: len(configs) * len(numbers)}) as shown:
            tell = shown.progress
            rows = coordcheck_lib.run_coordinate_check(
                configs,
                data,
                steps,
                numbers,
                batch,
                lambda done, tell=tell: tell({"step": done}),  # type: ignore[misc]
            )
        verdict = coordcheck_lib.growth_verdict(rows)
        checks.append({"axis": axis, "sizes": list(configs), "verdict": verdict, "rows": list(map(_check_row, rows))})
    facts = {"optimizer": resolved.optim.name, "peak_lr": resolved.optim.peak_lr} | resolved.parametrization.to_dict()
    return facts | {"steps": steps, "seeds": list(numbers), "batch": batch, "checks": checks}


def _sizes(config: "ConfigDict", widths: Sequence[int], depths: Sequence[int]) -> dict[str, dict[int, "ConfigDict"]]:
    """{axis: {size: config}} as asked for; by default DEFAULT_WIDTHS, or the smallest widths that the heads divide."""
    from scalelab.sweep.scaling.resize import resize_config, width_unit

    if not widths and not depths:
        unit = width_unit(config)
        divided = not any(width % unit for width in DEFAULT_WIDTHS)
        widths = DEFAULT_WIDTHS if divided else [unit * 2**i for i in range(len(DEFAULT_WIDTHS))]
    sizes = {"d_model": {d: resize_config(config, d) for d in widths}} if widths else {}
    return sizes | ({"n_layers": {n: resize_config(config, n_layers=n) for n in depths}} if depths else {})


def _check_row(row: Any) -> Facts:
    """A check's row as JSON; `rms` and `change` are means over seeds after each step, [steps + 1][sizes]."""
    names = ("activation", "verdict", "slope", "slope_error", "change_slope", "change_slope_error")
    means = {name: getattr(row, name).mean(0).T.tolist() for name in ("rms", "change")}
    return {name: getattr(row, name) for name in names} | means


@check_arguments(result=ANYTHING, plot=ANY_PATH)
def draw_coordcheck(result: Facts, plot: Path) -> list[str]:
    """Draw the RMS over sizes of a `coordcheck`, as .png or .pdf (`scalelab coordcheck --plot`); returns the paths."""
    from scalelab.report.figures.coordplots import write_coordinate_check

    if not isinstance(result, dict) or "checks" not in result:
        raise BadInput(f"result={str(result)[:60]} is not what `scalelab.api.coordcheck` returns")
    return [str(path) for path in write_coordinate_check(os.fspath(plot), result)]
