"""The IsoFLOP study: a grid of small runs, a law fitted to them, a larger run predicted, trained and scored.

    scalelab isoflop --quick --workdir=runs/quickstart
    scalelab isoflop --config=configs/mine.py --budgets=1e15,4e15,1.6e16 --sizes=64,96,128,192,256 \\
        --holdout-flops=6.4e16 --rule=mup --workdir=runs/mine

--dry-run prints the plan of the study and trains nothing: FLOPs, memory and hours of each run (but the held-out one,
whose size the fit chooses) and the intervals to be expected.

Every run's shape, steps, learning rate, batch, warm-up and beta2 follow from (size, budget) by a rule of the ladder,
named in the report: `small-bytes` (the quickstart's; d_model 16 to 80), `mup` (the config's own LR, at any width of
a muP config), `own` (the config's own LR, batch and share of warm-up everywhere, which other sizes may not suit),
`step_law` (Li et al. 2025; 0.2 to 1 billion parameters), `fitted:DIR` (fitted to your LR checks, e.g. a sweep like
configs/lr_checks.py) or `fitted:FILE` (the JSON of `scalelab fit --best-of=lr,batch_tokens --per=N,D`). At the smallest
and the largest size (each at its cheapest budget) LR and batch are also tried at half and twice the rule's. If the best
of them is at the edge, by more than the runs scatter about the law, the report fails.

The prediction is written to disk, with its time, before the larger run starts, and never edited. Run the command again
to resume: finished runs are not repeated. To fit only: `scalelab fit WORKDIR`. At the end the time of each part is
printed.

    scalelab study isoflop --quick --workdir=runs/quickstart
"""

import argparse
import math
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import align_columns, config_path, emit_json, folder_path, print_status
from scalelab.commands.plan.plan import main as plan_command
from scalelab.errors import BadInput, WorkFailed, nearest_hint
from scalelab.experiments import conduct, grid_check, ladder_runs, phases
from scalelab.experiments.ladder_runs import LadderStudy
from scalelab.experiments.shared import command_line
from scalelab.laws import FitError
from scalelab.laws.law.names import LAWS
from scalelab.plan.budget.book import LawBook, constant_params
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.record import records
from scalelab.study import open_study
from scalelab.sweep.scaling import rules

ROOT = pathlib.Path(__file__).parent.parent
QUICK_GRID = {  # FLOPs: values of d_model around the optimum
    1e11: (16, 24, 32, 40, 48, 56),
    2e11: (16, 24, 32, 40, 48, 64),
    4e11: (24, 32, 40, 48, 56, 64, 80),
    8e11: (24, 32, 40, 48, 56, 64, 80),
}
HOLDOUT_FACTOR = 4.0  # the held-out run's compute over the largest fitted budget
EARLIER_RESULTS = (
    pathlib.Path(__file__).parent / "results" / "quickstart.json"
)  # five studies of the quickstart's family
EARLIER_NOISE = 0.0095  # of a run's loss, relative: with it the intervals to be expected are as wide as theirs were


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study (default: --quick), before any of them runs (for `scalelab plan --sweep`).

    The held-out run is the one that the law of an earlier study would choose; for families other than the quickstart's
    no law is known, and it is left out.
    """
    study, options = parse_arguments(arguments or ["--quick"])
    grid, checks = grid_check.make_runs(study)
    runs = grid | checks
    if options.config:
        return PlannedStudy(runs, study.holdout_flops)
    known = load_earlier_law()
    runs["holdout"] = ladder_runs.predicted_best(study, lambda N, D: float(known.loss(N, D)[0]))
    return PlannedStudy(runs, study.holdout_flops, known, EARLIER_NOISE)


def load_earlier_law() -> LawBook:
    """The law of the earlier study with the median prediction."""
    studies = sorted(records.read_json(EARLIER_RESULTS)["studies"], key=lambda each: each["predicted_loss"])
    middle = studies[len(studies) // 2]
    return LawBook(
        name="quickstart",
        source=f"experiments/results/quickstart.json, seed {middle['seed']}, split {middle['split']}",
        n_convention="total",
        interval="none",
        surface=LAWS["chinchilla"],
        params=constant_params(middle["params"]),
    )


def parse_arguments(argv: Sequence[str], trains: bool = False) -> tuple[LadderStudy, Any]:
    """Parse arguments into (study, options). BadInput with all mistakes of the grid; `trains`: it needs a folder."""
    overrides, rest = config_lib.split_overrides(list(argv))
    parser = command_line("isoflop", __doc__, {"--holdout": "--holdout-flops"})
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="the study's folder; again to resume")
    parser.add_argument("--quick", action="store_true", help="the study of the README: minutes on two cores")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="with --quick: multiplies every budget (0.1 for a look)"
    )
    parser.add_argument(
        "--config", type=config_path, metavar="FILE", help="the family of models (default: configs/quickstart.py)"
    )
    parser.add_argument("--budgets", type=_numbers, metavar="C,C,…", help="fitted budgets in FLOPs")
    parser.add_argument("--sizes", type=_numbers, metavar="D,D,…", help="values of d_model, for every budget")
    parser.add_argument(
        "--holdout-flops", type=_number, metavar="C", help="FLOPs of the predicted run (default: 4 x the largest)"
    )
    parser.add_argument(
        "--rule",
        default="small-bytes",
        metavar="NAME",
        help=f"the ladder's rule: {', '.join(rules.RULES)}, fitted:DIR, fitted:FILE (of scalelab fit --best-of)",
    )
    parser.add_argument(
        "--checks", metavar="WHAT", help="what of the rule is checked: lr, batch or lr,batch (default; with --quick lr)"
    )
    parser.add_argument(
        "--started", type=float, metavar="UNIX", help="when installation began, for the table of seconds (make sets it)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan of the study and do nothing")
    options = parser.parse_args(rest)
    base = config_lib.load(options.config or ROOT / "configs" / "quickstart.py", overrides)
    rule, checked = rules.find_rule(options.rule, base), _checked(options)
    faults = _grid_faults(options)
    of_grid = bool(faults)
    if trains and options.workdir is None and not options.dry_run:
        faults.append("--workdir=DIR is needed: the study's folder")
    grid = _grid(options)
    largest = max(grid, default=0.0)
    holdout = options.holdout_flops or HOLDOUT_FACTOR * largest
    if holdout <= largest and grid:
        faults.append(
            f"--holdout-flops={holdout:g} is not beyond the largest budget {largest:g}; usual: "
            f"{HOLDOUT_FACTOR * largest:g}"
        )
    study = LadderStudy(base, grid, holdout, rule, checked)
    if faults and options.quick:
        raise BadInput("; ".join(faults))  # its grid is ours: five seconds of traces would find nothing in it
    grid_check.refuse_options(study, faults, of_grid)
    return study, options


def _checked(options: Any) -> tuple[str, ...]:
    """What of the rule is checked. With --quick the LR alone, for time: the rule's source says what its batch costs."""
    if options.checks is None:
        return ("lr",) if options.quick else tuple(ladder_runs.CHECK_FACTORS)
    names = tuple(dict.fromkeys(options.checks.split(",")))
    for name in names:
        if name not in ladder_runs.CHECK_FACTORS:
            raise BadInput(
                f"--checks={options.checks}: {name!r} is not checked{nearest_hint(name, ladder_runs.CHECK_FACTORS)}"
            )
    return names


def _grid_faults(options: Any) -> list[str]:
    """What is wrong with the options of the grid, apart from any run of it."""
    if options.quick:
        idle = options.budgets or options.sizes
        faults = ["--quick has its own budgets and sizes: use --scale, or leave --quick out"] if idle else []
        if not 0 < options.scale < math.inf:
            faults.append(f"--scale={options.scale:g} must be finite and above zero; 1 is the README's study")
        return faults
    counts = {name: len(set(getattr(options, name) or ())) for name in ("budgets", "sizes")}
    few = [f"--{name} has {n}" if n else f"--{name} is missing" for name, n in counts.items() if n < grid_check.LEAST]
    law = "a law of two variables needs at least 3 budgets and 3 sizes (or --quick)"
    faults = [f"{' and '.join(few)}: {law}"] if few else []
    for size in options.sizes or ():
        if size != int(size):
            faults.append(f"--sizes: {size:g} is not a whole number; nearest: {max(1, round(size))}")
    return faults


def _grid(options: Any) -> dict[float, tuple[int, ...]]:
    """{budget: sizes}; sizes are rounded, which `_grid_faults` refuses."""
    if options.quick:
        scale = options.scale if 0 < options.scale < math.inf else 1.0
        return {scale * budget: sizes for budget, sizes in QUICK_GRID.items()}
    return {budget: tuple(max(1, round(size)) for size in options.sizes or ()) for budget in options.budgets or ()}


def _numbers(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < math.inf for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers above zero with commas between them")
    return values


def _number(text: str) -> float:
    first, *more = _numbers(text)
    if more:
        raise argparse.ArgumentTypeError(f"{text!r} is more than one number")
    return first


def main(argv: Sequence[str]) -> int:
    """Run the study.

    Exit code: 0 done, 1 a run failed or a check's optimum is at the edge, 2 bad input, 75 stopped after saving.
    """
    return guarded("isoflop", _main, argv)


def _main(argv: Sequence[str]) -> int:
    study, options = parse_arguments(argv, trains=True)
    if options.dry_run:
        printed = [each for each in argv if each.startswith("--json")]
        study_options = [each for each in argv if each not in ("--dry-run", *printed)]
        return plan_command([f"--sweep={__file__}", *printed, "--", *study_options])
    folder = options.workdir
    clock = phases.PhaseClock(folder)
    before = time.time() - options.started if options.started else None
    with open_study(folder, conduct.KIND, conduct.describe_plan(study), report=print_status):
        try:
            summary = conduct.run_study(study, folder, " ".join(["python -m experiments.isoflop", *argv]), clock)
        except FitError as failure:
            raise WorkFailed(f"the law could not be fitted: {failure}") from failure
        if before is not None:
            clock.add(phases.INSTALLATION, before, None)
        with clock.timed("figures and page"):
            report = _report(folder, summary | {"wall_s": _wall_s(folder)})
        summary |= {"wall_s": _wall_s(folder), "seconds": conduct.collect_seconds(study, folder)}
        records.write_json(folder / "summary.json", summary)
    _say_result(folder, summary)
    emit_json(summary, options.json)
    for failure in report["failures"]:
        print_status(f"FAILED: {failure}")
    return 1 if report["failures"] else 0


def _report(folder: pathlib.Path, summary: dict[str, Any]) -> dict[str, Any]:
    from scalelab.report.pages import write_report

    records.write_json(folder / "summary.json", summary)
    return write_report(folder)


def _wall_s(folder: pathlib.Path) -> float:
    """Seconds of the study so far, without the installation."""
    lines = records.read_json_lines(folder / phases.PHASES_FILE)
    return sum(line["wall_s"] for line in lines if line["phase"] != phases.INSTALLATION)


def _say_result(folder: pathlib.Path, summary: dict[str, Any]) -> None:
    held = summary["held_out"]
    print_status("\n".join(align_columns(phases.phase_table(summary["seconds"]))))
    print_status(
        f"predicted {held['predicted_loss']:.4f}, measured {held['measured_loss']:.4f}: error {held['error']:+.2%}, "
        f"{'inside' if held['inside'] else 'OUTSIDE'} the 90 % interval (width {held['width']:.1%}); "
        f"{summary['wall_s']:.0f} s; {folder / 'report.html'}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
