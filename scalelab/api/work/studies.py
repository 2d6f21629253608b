"""Studies of many runs from Python: `tune`, `ablate` and `proxy`, as the commands of these names do."""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from scalelab.api.arguments import (
    ANY_PATH,
    ANYTHING,
    FOLDER,
    POSITIVE,
    Facts,
    Path,
    check_arguments,
    either,
    list_paths,
    optional,
    several,
    whole,
)
from scalelab.api.door import (
    Display,
    Overrides,
    Progress,
    Stop,
    config_file,
    config_path,
    never,
    plain_display,
    silent,
    train_in_pool,
)
from scalelab.api.work.sweeping import SLURM, chosen_executor
from scalelab.errors import BadInput, Stopped
from scalelab.laws.use.multiplier.result import WORTH, check_worth
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.sweep.sweep import PlannedStudy, SweepPlan, plan_study
from scalelab.record import records
from scalelab.study import Kind, open_study
from scalelab.sweep.ablate import conduct as ablation_lib
from scalelab.sweep.ablate import power, sides
from scalelab.sweep.ablate.study import Ablation, make_study
from scalelab.sweep.tune import conduct, stages, study, wording

LR_KEY = "optim.peak_lr"
TUNING = {name: whole(1) for name in ("trials", "rounds", "confirm", "seeds")} | {"short": optional(whole(1))}


class Studied(NamedTuple):
    """A study's summary, as in its summary.json, and the path of its page. `baseline`: that of an ablation."""

    summary: Facts
    page: str
    baseline: str = ""


@check_arguments(config=ANYTHING, **TUNING)
def plan_tuning(
    config: Path,
    overrides: Overrides | None = None,
    *,
    trials: int = 48,
    rounds: int = 3,
    short: int | None = None,
    confirm: int = 2,
    seeds: int = 3,
) -> stages.Tuning:
    """Plan what `tune` would train (`scalelab tune --dry-run`); `sweep.tune.wording.describe_plan` describes it."""
    return stages.load_tuning(config_path(config), overrides or {}, trials, rounds, short, confirm, seeds)


@check_arguments(config=ANYTHING, workdir=FOLDER, slurm=SLURM, **TUNING)
def tune(
    config: Path,
    workdir: Path,
    overrides: Overrides | None = None,
    *,
    trials: int = 48,
    rounds: int = 3,
    short: int | None = None,
    confirm: int = 2,
    seeds: int = 3,
    executor: str = "local",
    slurm: Path | Mapping[str, str] | None = None,
    max_parallel: int = 0,
    take_over: bool = False,
    progress: Progress = silent,
    stop: Stop = never,
    display: Display | None = None,
    command: str = "scalelab.api.tune",
) -> Studied | None:
    """Find good values for a config file with tune() (`scalelab tune`), or resume; None if it was stopped.

    `trials`: runs in all, in `rounds` of runs of `short` steps; `confirm`: how many of the best are trained in full;
    `seeds`: fresh seeds before a value is adopted. Executor and training as for `sweep`; `command`: the command line to
    name in the summary.
    """
    folder = pathlib.Path(workdir)
    note = lambda line: progress({"note": line})  # noqa: E731
    plan = stages.load_tuning(config_path(config), overrides or {}, trials, rounds, short, confirm, seeds)
    for line in wording.describe_counts(plan):
        note(line)
    show = display or plain_display(progress, stop)

    def work() -> Facts:
        with train_in_pool(folder, stages.change_base(plan, {}), take_over, show, progress) as train:
            return conduct.conduct_tuning(plan, folder, train, note)

    with chosen_executor(executor, slurm, max_parallel, note, config_file(config), folder):
        return _conduct(folder, study.KIND, study.describe_tuning(plan), work, command, take_over, progress)


def _conduct(
    folder: pathlib.Path,
    kind: Kind,
    plan: Facts,
    work: Callable[[], Facts],
    command: str,
    take_over: bool,
    progress: Progress,
    baseline: str = "",
) -> Studied | None:
    """Open the study, do its work, and write its summary and page; None where a signal stopped it."""
    from scalelab.report.pages import write_report

    try:
        with open_study(folder, kind, plan, take_over, lambda text: progress({"warning": text})):
            summary = {"command": command} | work()
            records.write_json(folder / "summary.json", summary)
            return Studied(summary, str(write_report(folder)["path"]), baseline)
    except Stopped:
        return None


ABLATION = {
    "baseline": ANY_PATH, "variant": several(ANY_PATH), "budgets": several(POSITIVE), "sizes": several(whole(1)),
    "seeds": whole(1), "tokens_per_param": POSITIVE, "target_flops": optional(POSITIVE), "worth": POSITIVE,
}  # fmt: skip


class AblationPlan(NamedTuple):
    """An ablation's runs with the planner's hours, and the smallest effect that they would show.

    `noise`: of a run's loss, None if it is neither given nor measured; then `smallest_effect` is None too, and
    `by_noise` has it for a range of noises. `limits`: what these budgets and seeds can't tell whatever they cost.
    """

    study: Ablation
    planned: SweepPlan
    noise: float | None
    correlation: float
    smallest_effect: float | None
    by_noise: dict[float, float | None]
    limits: list[str]


@check_arguments(**ABLATION, workdir=optional(FOLDER), noise=optional(either(POSITIVE, ANY_PATH)))
def plan_ablation(
    baseline: Path,
    variant: str | Sequence[str],
    budgets: Sequence[float],
    overrides: Overrides | None = None,
    *,
    sizes: Sequence[int] = (),
    seeds: int = 3,
    rule: str = "own",
    tune: str | Sequence[str] = LR_KEY,
    untuned: bool = False,
    tokens_per_param: float = 20.0,
    target_flops: float | None = None,
    fix: Mapping[str, float] | None = None,
    worth: float = WORTH,
    workdir: Path | None = None,
    noise: float | Path | None = None,
    correlation: float | None = None,
    progress: Progress = silent,
) -> AblationPlan:
    """Plan what `ablate` would train, and the smallest effect that it would show (`scalelab ablate --plan`).

    `noise`: relative scatter of a run's loss over seeds, or a folder of runs, some of which differ in their seed alone;
    `correlation`: between both sides' losses at one seed. The defaults are measured in `workdir`. `fix`: as in
    `ablate`.
    """
    fixed = dict(fix or {})
    power.check_fixed(fixed)
    study, target, lines = _make_ablation(
        baseline, variant, budgets, overrides, sizes, seeds, rule, tune, untuned, tokens_per_param, target_flops
    )
    check_worth(worth)
    for line in lines:
        progress({"note": line})
    folder = None if workdir is None else pathlib.Path(workdir)
    known = power.known_noise(study, folder, noise, correlation)
    smallest, shows = power.describe_known(study, known, target, worth)
    limits = power.describe_limits(study, fixed)
    planned = plan_study(
        PlannedStudy(power.all_runs(study), target, shows=(*shows, *limits)), "this ablation", load_machine("cpu")
    )
    least = None if known.noise is None else smallest[known.noise]
    return AblationPlan(study, planned, known.noise, known.correlation, least, smallest, limits)


@check_arguments(**ABLATION, workdir=FOLDER, slurm=SLURM)
def ablate(
    baseline: Path,
    variant: str | Sequence[str],
    budgets: Sequence[float],
    workdir: Path,
    overrides: Overrides | None = None,
    *,
    sizes: Sequence[int] = (),
    seeds: int = 3,
    rule: str = "own",
    tune: str | Sequence[str] = LR_KEY,
    untuned: bool = False,
    tokens_per_param: float = 20.0,
    target_flops: float | None = None,
    fix: Mapping[str, float] | None = None,
    worth: float = WORTH,
    next: bool = False,
    executor: str = "local",
    slurm: Path | Mapping[str, str] | None = None,
    max_parallel: int = 0,
    take_over: bool = False,
    progress: Progress = silent,
    stop: Stop = never,
    display: Display | None = None,
    command: str = "scalelab.api.ablate",
) -> Studied | None:
    """Does a change hold at scale? Train both sides on a ladder of budgets (`scalelab ablate`); None if stopped.

    `baseline`, `variant`: config files, or names pkg.mod:fn; `sizes`: d_model of each rung; `fix`: values of E or alpha
    that are not fitted; `worth`: the smallest multiplier that matters; `next`: also which further runs would settle it.
    Executor and training as for `sweep`.
    """
    folder, fixed = pathlib.Path(workdir), dict(fix or {})
    check_worth(worth)
    power.check_fixed(fixed)
    note = lambda line: progress({"note": line})  # noqa: E731
    study, target, lines = _make_ablation(
        baseline, variant, budgets, overrides, sizes, seeds, rule, tune, untuned, tokens_per_param, target_flops
    )
    for line in (*lines, *power.describe_limits(study, fixed)):
        progress({"note": line})
    show = display or plain_display(progress, stop)

    def work() -> Facts:
        first, *_ = ablation_lib.final_runs(study, study.rungs[:1], {}).values()
        with train_in_pool(folder, first, take_over, show, progress) as train:
            ablation_lib.conduct_study(study, folder, train, note, fixed, target, worth)
        return ablation_lib.score_study(study, folder, target, fixed, with_next=next, worth=worth)

    plan = ablation_lib.describe_study(study)
    with chosen_executor(executor, slurm, max_parallel, note, None, folder):
        return _conduct(folder, ablation_lib.KIND, plan, work, command, take_over, progress, study.baseline.name)


def _make_ablation(
    baseline: Path,
    variant: str | Sequence[str],
    budgets: Sequence[float],
    overrides: Overrides | None,
    sizes: Sequence[int],
    seeds: int,
    rule: str,
    tune: str | Sequence[str],
    untuned: bool,
    tokens_per_param: float,
    target_flops: float | None,
) -> tuple[Ablation, float, list[str]]:
    """Make (the study, the budget of its verdict, what was chosen for the user)."""
    keys = [tune] if isinstance(tune, str) else list(tune)
    if untuned and keys != [LR_KEY]:
        raise BadInput("--untuned tunes nothing, and --tune says what to tune: leave one of them out")
    names = [os.fspath(each) for each in list_paths(variant)]
    values = {key: str(value) for key, value in (overrides or {}).items()}
    loaded, notes = sides.load_sides(os.fspath(baseline), names, values)
    plan = make_study(loaded, list(budgets), list(sizes), seeds, rule, () if untuned else tuple(keys), tokens_per_param)
    target = target_flops or plan.rungs[-1].flops
    return plan, target, [*notes, *_describe_rungs(plan, bool(sizes), tokens_per_param, target)]


def _describe_rungs(plan: Ablation, has_sizes: bool, tokens_per_param: float, target: float) -> list[str]:
    """Describe the sizes, tokens and target that were chosen for the user."""
    rungs = ", ".join(f"{rung.flops:.3g} FLOPs at d_model {rung.d_model}" for rung in plan.rungs)
    how = "" if has_sizes else f" (nearest to {tokens_per_param:g} tokens a parameter)"
    tuned = (
        f"tuned on each side: {', '.join(plan.tuned)}"
        if plan.tuned
        else "UNTUNED: each side at its config's own values"
    )
    return [f"rungs: {rungs}{how}", f"{tuned}; rule {plan.rule}; verdict at {target:.3g} FLOPs"]
