"""scalelab tune --config=FILE --workdir=DIR [--trials=T] [--config.group.key=value …]
scalelab tune SOURCE [SOURCE…] [--by=KEY,KEY] [--columns=FIELD=COLUMN,…]

Find good values for a config. The file's tune() says which keys are searched (nuisance), compared (scientific: each
value gets a search of its own) and held (fixed):

    def tune():
        return {"nuisance": {"optim.peak_lr": (1e-3, 1e-1, "log"), "optim.beta2": (0.9, 0.999, "one_minus")}}

First short runs without warm-up find the learning rate that diverges, and the warm-up that bears more. Then rounds of
short runs at scrambled Halton points: a round's space is widened where the best lies within a tenth of an edge, and
shrinks around it else. The best trials and the lowest point of a surface through all are trained in full, then the
best of these at other learning rates, and clipped at the 90th percentile of its gradient norms. The best of all and the
config as it is are trained on fresh seeds, in pairs: it is adopted if the gain's 90 % interval lies above zero.

It writes best.py, a config that trains the best, summary.json and a page (report.html). Run it again to resume.

With SOURCEs nothing is trained: they are finished runs of a sweep, of this or another program (docs/foreign.md), as in
`scalelab tune theirs/sweep --by=optim.peak_lr`. It prints the mean loss of each setting over its seeds, which setting
won, by how much, with an interval that knows that the best was picked by looking, and which are not told apart from it.
--by: the keys that make a setting (default: all that differ).

Exit code: 0 done (whatever the verdict), 1 a run failed, 2 bad input, 75 stopped by a signal after saving.

    scalelab tune --config=tiny --workdir=runs/tune --trials=48
"""

import shlex
import sys
from typing import Any

from scalelab import api
from scalelab.cli.executor_options import add_executor_options
from scalelab.cli.foreign import add_sources
from scalelab.cli.parser import (
    Parser,
    add_take_over_option,
    add_trust_option,
    config_path,
    emit_json,
    folder_path,
    whole_number,
)
from scalelab.cli.study_runs import describe_trials
from scalelab.cli.terminal import Terminal, print_report
from scalelab.config import CommandLine, split_overrides
from scalelab.errors import BadInput

JUDGING = ("sources", "by", "columns", "json", "foreign", "trust")


def main(argv: list[str]) -> int:
    """Tune, plan or show a tuning; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    options = _parser().parse_args(rest)
    if options.sources:
        return _judge(options, overrides)
    if options.by:
        raise BadInput("--by goes with SOURCEs, finished runs: leave it out")
    code, lines, result = _show(options) if options.status else _tune(options, overrides)
    if options.json != "-":
        print("\n".join(lines))
    emit_json(result, options.json)
    return code


def _parser() -> Parser:
    parser = Parser("tune", __doc__)
    add = parser.add_argument
    add("sources", nargs="*", metavar="SOURCE", help="finished runs to judge: a folder of runs, of any program")
    add("--by", metavar="KEY,KEY", help="of SOURCEs: the keys that make a setting (default: all that differ)")
    add("--config", type=config_path, metavar="FILE", help="a config file with get_config() and tune()")
    add("--workdir", type=folder_path, metavar="DIR", help="the tuning's folder; again to resume")
    add("--trials", type=whole_number, default=48, metavar="T", help="runs in all, probes and fresh seeds too (48)")
    add("--rounds", type=int, default=3, metavar="R", help="rounds of short runs (default: 3)")
    add("--short", type=whole_number, metavar="S", help="steps of a short run (default: a third of train.steps)")
    add("--confirm", type=int, default=2, metavar="K", help="best short runs that are trained in full (default: 2)")
    add("--seeds", type=int, default=3, metavar="K", help="fresh seeds before it is adopted (default: 3)")
    add("--dry-run", action="store_true", help="print the plan and the first round; train nothing")
    add("--status", action="store_true", help="print the table of runs and do nothing else")
    add_trust_option(parser)
    add_executor_options(parser)
    add_take_over_option(parser)
    add_sources(parser, ("sources",))
    return parser


def _judge(options: Any, overrides: CommandLine) -> int:
    """Print which setting of finished runs won. BadInput for an option that is for training."""
    for name, value in vars(_parser().parse_args([])).items():
        if name not in JUDGING and getattr(options, name) != value:
            raise BadInput(f"--{name.replace('_', '-')} has no effect with SOURCEs, which are judged: leave it out")
    if overrides:
        raise BadInput(f"--config.{next(iter(overrides))} has no effect with SOURCEs: leave it out")
    from scalelab.cli.answers import print_answer
    from scalelab.sweep.answer.winner import describe_winner
    from scalelab.sweep.answer.wording import answer_json

    judged = api.judge_sweep(options.sources, [key for key in (options.by or "").split(",") if key])
    if options.json != "-":
        print_answer(judged.answer)
        print("\n".join(map(describe_winner, judged.winners)))
    winners = [winner._asdict() for winner in judged.winners]
    emit_json(answer_json(judged.answer) | {"winners": winners}, options.json)
    return int(judged.answer.damaged > 0)


def _show(options: Any) -> tuple[int, list[str], Any]:
    if options.workdir is None:
        raise BadInput("--status needs --workdir")
    rows = api.study_status(options.workdir)
    return 0, describe_trials(rows), {"trials": rows}


def _tune(options: Any, overrides: CommandLine) -> tuple[int, list[str], Any]:
    from scalelab.sweep.tune import wording

    for name in ("config",) if options.dry_run else ("config", "workdir"):
        if getattr(options, name) is None:
            raise BadInput(f"--{name} is needed (see scalelab tune --help)")
    for name in ("trials", "rounds", "confirm", "seeds"):
        if getattr(options, name) < 1:
            raise BadInput(f"--{name}={getattr(options, name)}: at least 1")
    if options.short is not None and options.short < 1:
        raise BadInput(f"--short={options.short}: at least 1 step")
    counts = {name: getattr(options, name) for name in ("trials", "rounds", "short", "confirm", "seeds")}
    if options.dry_run:
        tuning = api.plan_tuning(options.config, overrides, **counts)
        return 0, wording.describe_plan(tuning), wording.plan_json(tuning)
    tuned = api.tune(
        options.config,
        options.workdir,
        overrides,
        **counts,
        executor=options.executor,
        slurm=options.slurm,
        max_parallel=options.max_parallel,
        take_over=options.take_over,
        progress=print_report,
        display=Terminal(),
        command=shlex.join(["scalelab", "tune", *sys.argv[2:]]),
    )
    if tuned is None:
        return 75, [f"stopped; the same command goes on where it was ({options.workdir})"], {"stopped": True}
    return 0, [*wording.describe_result(tuned.summary), f"the page: {tuned.page}"], tuned.summary
