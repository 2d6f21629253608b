"""`scalelab ablate --baseline=… --variant=…`: plan, train, score and show a study."""

import dataclasses
import shlex
import sys
from typing import Any

from scalelab import api
from scalelab.cli.study_runs import describe_trials
from scalelab.cli.terminal import Terminal, print_report
from scalelab.commands.ablate import text
from scalelab.commands.ablate.options import LR_KEY, parse_fixed
from scalelab.config import CommandLine
from scalelab.errors import BadInput


def run(options: Any, overrides: CommandLine) -> tuple[int, list[str], dict[str, Any]]:
    """Run, plan or look at a study: (exit code, lines to print, JSON)."""
    if options.status:
        return _status(options)
    if options.untuned and options.tune != LR_KEY:
        raise BadInput("--untuned tunes nothing, and --tune says what to tune: leave one of them out")
    if not options.plan:
        for name in ("noise", "correlation"):
            if getattr(options, name) is not None:
                raise BadInput(f"--{name} is for --plan: leave it out")
    sides = {
        "sizes": [int(size) for size in options.sizes], "seeds": options.seeds, "rule": options.rule,
        "tune": options.tune.split(","), "untuned": options.untuned, "tokens_per_param": options.tokens_per_param,
        "target_flops": options.target_flops, "worth": options.worth, "progress": print_report,
    }  # fmt: skip
    return (_plan if options.plan else _conduct)(options, overrides, sides)


def _plan(options: Any, overrides: CommandLine, sides: dict[str, Any]) -> tuple[int, list[str], dict[str, Any]]:
    """Plan the study's runs with the planner's hours, and the smallest effect that they would show."""
    from scalelab.commands.plan import budget_text

    plan = api.plan_ablation(
        options.baseline,
        options.variant,
        options.budgets,
        overrides,
        **sides,
        workdir=options.workdir,
        fix=parse_fixed(options.fix),
        noise=options.noise,
        correlation=options.correlation,
    )
    content = dataclasses.asdict(plan.planned) | {"noise": plan.noise, "correlation": plan.correlation}
    content |= {"by_noise": {f"{noise:.4g}": least for noise, least in plan.by_noise.items()}, "limits": plan.limits}
    return 0, budget_text.describe_sweep(plan.planned), content | {"smallest_effect": plan.smallest_effect}


def _conduct(options: Any, overrides: CommandLine, sides: dict[str, Any]) -> tuple[int, list[str], dict[str, Any]]:
    judged = api.ablate(
        options.baseline,
        options.variant,
        options.budgets,
        options.workdir,
        overrides,
        **sides,
        fix=parse_fixed(options.fix),
        next=options.next,
        executor=options.executor,
        slurm=options.slurm,
        max_parallel=options.max_parallel,
        take_over=options.take_over,
        display=Terminal(),
        command=shlex.join(["scalelab", "ablate", *sys.argv[2:]]),
    )
    if judged is None:
        return 75, [f"stopped; the same command goes on where it was ({options.workdir})"], {"stopped": True}
    lines = [text.describe_variant(each, judged.baseline) for each in judged.summary["variants"]]
    return 0, [*text.join_lines(lines), f"the page: {judged.page}"], judged.summary


def _status(options: Any) -> tuple[int, list[str], dict[str, Any]]:
    rows = api.study_status(options.workdir)
    return 0, describe_trials(rows), {"trials": rows}
