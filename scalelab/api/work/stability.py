"""At which LR a wider run of a config diverges, from Python, as `scalelab plan --stability` forecasts it."""

import pathlib
from typing import TYPE_CHECKING, NamedTuple

from scalelab.api.arguments import ANYTHING, FOLDER, Facts, check_arguments, whole
from scalelab.api.defaults import WIDER
from scalelab.api.door import (
    Config,
    Display,
    Overrides,
    Progress,
    Stop,
    load_config,
    never,
    plain_display,
    silent,
    train_in_pool,
)
from scalelab.errors import Stopped
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.sweep.sweep import PlannedStudy, plan_study
from scalelab.record import records
from scalelab.study import open_study
from scalelab.sweep.scaling import divergence, stability
from scalelab.sweep.scaling.stability import Ladder

if TYPE_CHECKING:
    from ml_collections import ConfigDict

COMPILE_S = 10.0  # of a width's program, on two CPU cores at work (configs/tiny.py)


class StabilityPlan(NamedTuple):
    """The runs that a forecast would train, and their seconds here; `compile_s` of these compile a program a width."""

    ladder: Ladder
    seconds: float
    compile_s: float


@check_arguments(config=ANYTHING)
def plan_stability(config: Config, overrides: Overrides | None = None) -> StabilityPlan:
    """What `forecast_stability` would train, and what it costs (`scalelab plan --stability` without --workdir)."""
    ladder = stability.plan_ladder(load_config(config, overrides))
    runs: dict[str, ConfigDict] = {}
    for twin in ladder.twins.values():
        runs |= stability.make_trials(twin, stability.first_rates(twin.optim.peak_lr), ladder.seeds)
    planned = plan_study(PlannedStudy(runs, shows=("the LR that diverges",)), "this forecast", load_machine("cpu"))
    steps_s = 3600 * planned.wall_hours * ladder.n_runs / len(runs)
    return StabilityPlan(ladder, steps_s + COMPILE_S * len(ladder.twins), COMPILE_S * len(ladder.twins))


@check_arguments(config=ANYTHING, workdir=FOLDER, wider=whole(1))
def forecast_stability(
    config: Config,
    workdir: str,
    overrides: Overrides | None = None,
    *,
    wider: int = WIDER,
    take_over: bool = False,
    progress: Progress = silent,
    stop: Stop = never,
    display: Display | None = None,
) -> Facts | None:
    """Forecast the LR at which a run `wider` times as wide diverges (`scalelab plan --stability`); None if stopped.

    Trains short runs of narrower widths in `workdir`, or resumes; measured once, they forecast any width.
    """
    base = load_config(config, overrides)
    ladder, folder = stability.plan_ladder(base), pathlib.Path(workdir)
    note = lambda line: progress({"note": line})  # noqa: E731
    show = display or plain_display(progress, stop)
    first = next(iter(ladder.twins.values()))
    try:
        with (
            open_study(
                folder,
                stability.KIND,
                stability.describe_ladder(ladder),
                take_over,
                lambda text: progress({"warning": text}),
            ),
            train_in_pool(folder, first, take_over, show, progress) as train,
        ):
            brackets = stability.measure_widths(folder, ladder.twins, ladder.seeds, train, note)
            facts = describe_forecast(ladder, brackets, wider)
            records.write_json(folder / "forecast.json", facts)
            return facts
    except Stopped:
        return None


def describe_forecast(ladder: Ladder, brackets: stability.Brackets, wider: int) -> Facts:
    """The forecast with all that it stands on, as the command's --json prints it."""
    peak_lr = ladder.base.optim.peak_lr
    facts = divergence.forecast(brackets, wider * ladder.base.model.d_model)
    return facts | {
        "wider": wider,
        "peak_lr": peak_lr,
        "times_below": facts["lr"] / peak_lr,
        "parametrization": ladder.base.parametrization.name,
        "measured": {
            str(width): [{"stable": each.stable, "diverged": each.diverged, "lr": each.middle} for each in seeds]
            for width, seeds in brackets.items()
        },
        "steps": ladder.steps,
        "seeds": list(ladder.seeds),
        "proxy": ladder.is_proxy,
    }
