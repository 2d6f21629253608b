"""`scalelab ablate --baseline=… --variant=…`: plan, train, score and show a study."""

import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import records
from scalelab.cli.parser import print_status, print_table
from scalelab.cli.progress import PoolProgress
from scalelab.commands.ablate import text
from scalelab.commands.ablate.options import parse_fixed
from scalelab.errors import BadInput


def run(options: Any, overrides: Mapping[str, str]) -> tuple[int, list[str], dict[str, Any]]:
    """(exit code, lines to print, JSON) of a study, its plan, or its state."""
    if options.status:
        return _status(options.workdir)
    from scalelab.sweep.ablate import sides, study

    if options.untuned and options.tune != "optim.peak_lr":
        raise BadInput("--untuned tunes nothing, and --tune says what to tune: leave one of them out")
    loaded, notes = sides.load_sides(options.baseline, options.variant, overrides)
    tuned = () if options.untuned else tuple(options.tune.split(","))
    widths = [int(size) for size in options.sizes]
    plan = study.make_study(
        loaded, options.budgets, widths, options.seeds, options.rule, tuned, options.tokens_per_param
    )
    target = options.target_flops or plan.rungs[-1].flops
    for note in (*notes, *_describe_rungs(plan, options, target)):
        print_status(note)
    if options.plan:
        return _plan(plan, options, target)
    for name in ("noise", "correlation"):
        if getattr(options, name) is not None:
            raise BadInput(f"--{name} is for --plan: leave it out")
    return _conduct(plan, options, target)


def _describe_rungs(plan: Any, options: Any, target: float) -> list[str]:
    """What was chosen for the user."""
    rungs = ", ".join(f"{rung.flops:.3g} FLOPs at d_model {rung.d_model}" for rung in plan.rungs)
    how = "" if options.sizes else f" (nearest to {options.tokens_per_param:g} tokens a parameter)"
    tuned = (
        f"tuned on each side: {', '.join(plan.tuned)}"
        if plan.tuned
        else "UNTUNED: each side at its config's own values"
    )
    return [f"rungs: {rungs}{how}", f"{tuned}; rule {plan.rule}; verdict at {target:.3g} FLOPs"]


def _plan(plan: Any, options: Any, target: float) -> tuple[int, list[str], dict[str, Any]]:
    """The runs of the study with the planner's hours, and the smallest effect that they would show."""
    import dataclasses

    from scalelab.commands.plan import budget_text
    from scalelab.plan.machine.machine import load_machine
    from scalelab.plan.sweep.sweep import NOISE, PlannedStudy, plan_study
    from scalelab.sweep.ablate import power

    runs = power.all_runs(plan)
    planned = plan_study(PlannedStudy(runs, target), "this ablation", load_machine("cpu"))
    noise, correlation, source = power.known_noise(plan, options.workdir, options.noise, options.correlation, NOISE)
    smallest = power.smallest_shown(plan, noise, correlation, target)
    lines = budget_text.describe_sweep(dataclasses.replace(planned, forecast=None, notes=()))
    lines.append(f"noise of a run's loss {noise:.2%}, correlation of pairs {correlation:.2f}: {source}")
    lines.append(power.describe_smallest(plan, smallest, target))
    content = dataclasses.asdict(planned) | {"noise": noise, "correlation": correlation, "smallest_effect": smallest}
    return 0, lines, content


def _conduct(plan: Any, options: Any, target: float) -> tuple[int, list[str], dict[str, Any]]:
    from scalelab.hardware import device_memory
    from scalelab.report.pages import write_report
    from scalelab.signals import stop_on_signals
    from scalelab.sweep import status
    from scalelab.sweep.ablate import conduct
    from scalelab.sweep.executors.pool import WorkerPool, worker_count
    from scalelab.sweep.run import run_sweep
    from scalelab.train.run.single import load_run_dataset
    from scalelab.train.step.program import cache_compilations

    folder, fixed = options.workdir, parse_fixed(options.fix)
    device_memory.reserve_gpu_memory()
    conduct.open_study(plan, folder)
    cache_compilations()
    first = next(iter(conduct.final_runs(plan, plan.rungs[:1], {}).values()))
    load_run_dataset(first)
    workers = worker_count(first.sweep.workers)
    with stop_on_signals() as stop, WorkerPool(folder, workers, (), options.take_over) as pool:

        def train(trials: Mapping[str, ConfigDict]) -> bool:
            with PoolProgress(folder, {name: trial.train.steps for name, trial in trials.items()}) as board:
                verdicts = run_sweep(
                    folder, trials, watch=board.update, stop=stop, take_over=options.take_over, workers=pool
                )
            if not stop():
                status.refuse_crashed(folder, verdicts)
            return not stop()

        if not conduct.conduct_study(plan, folder, train, print_status, fixed):
            return 75, [f"stopped; the same command goes on where it was ({folder})"], {"stopped": True}
    summary: dict[str, Any] = {"command": shlex.join(["scalelab", "ablate", *sys.argv[2:]])}
    summary |= conduct.score_study(plan, folder, target, fixed, with_next=options.next)
    records.write_json(folder / "summary.json", summary)
    page = write_report(folder)["path"]
    lines = [text.describe_variant(each, plan.baseline.name) for each in summary["variants"]]
    return 0, [*text.join_lines(lines), f"the page: {page}"], summary


def _status(folder: pathlib.Path) -> tuple[int, list[str], dict[str, Any]]:
    from scalelab.sweep import status

    rows = status.read_trial_rows(folder)
    columns = ("name", "status", "step", "steps", "val_loss")
    print_table(columns, [["-" if row.get(key) is None else str(row[key]) for key in columns] for row in rows])
    return 0, [status.describe_verdicts([row["status"] for row in rows])], {"trials": rows}
