"""`scalelab ablate --baseline=… --variant=…`: plan, train, score and show a study."""

import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from scalelab import lock, records
from scalelab.cli.parser import print_status
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

    noise, correlation, source = power.known_noise(plan, options.workdir, options.noise, options.correlation, NOISE)
    smallest, shows = power.describe_power(plan, noise, correlation, source, target)
    planned = plan_study(PlannedStudy(power.all_runs(plan), target, shows=shows), "this ablation", load_machine("cpu"))
    content = dataclasses.asdict(planned) | {"noise": noise, "correlation": correlation, "smallest_effect": smallest}
    return 0, budget_text.describe_sweep(planned), content


def _conduct(plan: Any, options: Any, target: float) -> tuple[int, list[str], dict[str, Any]]:
    from scalelab.api.work.door import train_in_pool
    from scalelab.cli.terminal import Terminal, report
    from scalelab.report.pages import write_report
    from scalelab.sweep.ablate import conduct

    folder, fixed = options.workdir, parse_fixed(options.fix)
    with lock.undo_if_refused(folder, conduct.STUDY_FILE):
        conduct.open_study(plan, folder)
        first = next(iter(conduct.final_runs(plan, plan.rungs[:1], {}).values()))
        with train_in_pool(folder, first, options.take_over, Terminal(), report) as train:
            if not conduct.conduct_study(plan, folder, train, print_status, fixed):
                return 75, [f"stopped; the same command goes on where it was ({folder})"], {"stopped": True}
    summary: dict[str, Any] = {"command": shlex.join(["scalelab", "ablate", *sys.argv[2:]])}
    summary |= conduct.score_study(plan, folder, target, fixed, with_next=options.next)
    records.write_json(folder / "summary.json", summary)
    page = write_report(folder)["path"]
    lines = [text.describe_variant(each, plan.baseline.name) for each in summary["variants"]]
    return 0, [*text.join_lines(lines), f"the page: {page}"], summary


def _status(folder: pathlib.Path) -> tuple[int, list[str], dict[str, Any]]:
    from scalelab.cli.study_runs import describe_trials

    lines, rows = describe_trials(folder)
    return 0, lines, {"trials": rows}
