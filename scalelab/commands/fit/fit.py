"""`scalelab fit SOURCE…`: fit a scaling law and report how far to trust it.

  scalelab fit runs/quickstart --target-flops=4e12
  scalelab fit points.csv --columns='N=Model Size,C=Training FLOP,loss=loss' --drop-top-loss=5 --figures=figures
  scalelab fit runs.csv --law=data_constrained --columns=N=params,D=tokens,U=unique --where="unique > 1e8"
  scalelab fit sweep.csv --best-of=lr,batch --per=N,D --target-values=N=1e9,D=1e11
  scalelab fit mixtures.csv --law=mixture --losses=loss_web:0.7,loss_code:0.3
  scalelab fit runs/a runs/b runs/c --law=annealing --predict-run=runs/d --schedule-of=configs/mine.py
  scalelab fit ladder.csv --accuracy --columns=loss=task_loss,accuracy=acc --target-values=N=7e9,D=4e12

A SOURCE is a folder of runs (a run, a sweep, a study) or a .csv, .tsv, .jsonl (or .gz) or .parquet table. A table needs
two of N, D and C: C = 6ND gives the third. Usual names (params, tokens, flops, final_loss, …) and numbers as people
write them (50M, 1,234,567, 1.3B) are read, and a line says so. Runs that diverged or didn't finish are never fitted.

Exit codes: 0 done, 1 no trustworthy optimum was found, 2 bad input.

    scalelab fit runs/quickstart --target-flops=3.2e12 --figures=figures
"""

import argparse
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from scalelab.cli.foreign import add_sources
from scalelab.cli.help import COLUMNS
from scalelab.cli.parser import Parser, count_above_zero, emit_json, folder_path, whole_number
from scalelab.commands.fit.options import CURVES, known_laws, law_docs, law_names, refuse_idle
from scalelab.numbers.written import parse_count

DETAILS = """how curves, ladders and the output are read.

A law of curves (--law=annealing, multi_power) takes runs of one model that differ in schedule and seed, and predicts
the whole curve of another, or of a table with columns run, step, lr, loss, where --predict-run names a run. The LR of
every step comes from each run's config, intervals from differences between runs and from schedules that are left out
in turn. A ladder to accuracy (--accuracy) predicts what a larger model scores on a task, from its loss there.
scalelab/laws/README.md explains the output.
"""
COMMON = ("columns", "where", "law", "best_of", "per", "by", "approach", "bootstrap", "target_flops", "target_values",
    "holdout", "tournament", "figures", "next_runs", "grid", "accuracy", "predict_run")  # fmt: skip
RENAMED = {"--n": "--n-convention", "--plot": "--figures", "--target": "--determine"}


def main(argv: list[str]) -> int:
    """Fit and print the result (or its JSON); exit code 1 if the optimiser found no trustworthy optimum."""
    parser = _parser()
    options = parser.parse_args(argv)
    refuse_idle(options, {name: parser.get_default(name) for name in vars(options)})
    from scalelab.commands.fit import approaches, best_settings, by, ladder, law
    from scalelab.commands.fit.curves import run as curves
    from scalelab.laws.solve.optimum import FitError

    run = approaches.run_approach if options.approach < 3 else by.run_group_fit if options.by else law.run_law_fit
    try:
        run = best_settings.run_best_settings if options.best_of else run
        run = best_settings.run_best_shares if best_settings.wants_shares(options) else run
        run = curves.run_curve_fit if options.law in law_docs(CURVES) else run
        lines, result = (ladder.run_ladder if options.accuracy else run)(options)
    except FitError as failure:
        print(f"scalelab: {failure}", file=sys.stderr)
        return 1
    if options.json != "-":
        print("\n".join(lines))
    emit_json(result, options.json)
    return 0


def _parser() -> Parser:
    names = "laws (--law=NAME, or your own as pkg.mod:fn):\n" + textwrap.fill(", ".join(law_names()), COLUMNS)
    parser = Parser("fit", f"{__doc__}\n{names}", RENAMED, stored={"sources": {}})
    parser.shorten_help(COMMON, f"{DETAILS}\nequations of the laws:\n{known_laws()}")
    what = "a folder of runs, or a .csv, .tsv, .jsonl (or .gz) or .parquet table"
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=what)
    _rows(parser.add_argument_group("which rows").add_argument)
    _fit(parser.add_argument_group("the fit").add_argument)
    _groups(parser.add_argument_group("several groups").add_argument)
    _uses(parser.add_argument_group("what follows from it").add_argument)
    _accuracy(parser.add_argument_group("from size over a task's loss to its accuracy").add_argument)
    add_sources(parser, ("sources",), files=False)
    _curves(parser.add_argument_group("curves within a run (--law=annealing, --law=multi_power)").add_argument)
    return parser


def _rows(add: Callable[..., Any]) -> None:
    add(
        "--columns",
        metavar="N=A,D=B,…",
        help="which columns of a table hold N, D, C, loss and the law's other fields (of runs: any but N); "
        "conversions: N=A*1e6, N=exp(A), N=10**A, loss=log(A) (default: by usual names, printed)",
    )
    add(
        "--n-convention",
        metavar="KIND",
        help="N of runs: active (default with experts), total, non_embedding, kaplan, chinchilla",
    )
    add(
        "--size",
        metavar="KIND",
        help="N of models with experts: active (those that a token uses; FLOPs are of these) or total (default: as the "
        "law says, else by the column's name, and asked where two fit)",
    )
    add(
        "--where",
        action="append",
        default=[],
        metavar="EXPR",
        help="keep rows where this holds, e.g. 'N > 1e8 and D/N < 100'; repeatable",
    )
    add(
        "--finished",
        metavar="WORD,…",
        help="words in a table's column status or state that mean a finished run, beside finished, done, COMPLETED, …",
    )
    add(
        "--checkpoints",
        metavar="HOW",
        help="of a run with several rows fit the last, its final loss, or all (default: last, if enough runs are left; "
        "said)",
    )
    add("--drop-top-loss", type=int, default=0, metavar="K", help="leave out the K largest losses")


def _fit(add: Callable[..., Any]) -> None:
    add("--law", metavar="NAME", help="one of the laws above (default: chinchilla)")
    add("--hold", type=parse_pairs, metavar="E=X,…", help="hold these parameters at values and fit the others")
    add("--best-of", metavar="lr,batch", help="find the best of these settings in each group of runs, and their laws")
    add(
        "--losses",
        metavar="A[:W],…",
        help="--law=mixture: losses of validation domains and their weights, of which the "
        "best shares are found (default: all that tell their domain)",
    )
    add("--per", metavar="N,D", help="what makes a group for --best-of, and what the laws are of")
    add(
        "--over",
        metavar="lr=N+D,…",
        help="columns of each setting's law (default: all of --per; of a batch D alone)",
    )
    add(
        "--objective",
        metavar="NAME",
        help="huber_log (default), huber (of the loss itself), mse_log, mse, mle, asymmetric; NAME:X counts rows below "
        "the law X times, for an envelope (asymmetric: huber_log:10)",
    )
    add(
        "--weights",
        metavar="COLUMN|scale",
        help="inverse variances of the rows; scale: noise goes as a power of the run's size (default: one for all)",
    )
    add("--delta", type=float, metavar="X", help="Huber's threshold on residuals (default: 1e-3)")
    add("--bootstrap", type=whole_number, default=1000, metavar="COUNT", help="resamples; 0: none (default: 1000)")
    add(
        "--cluster",
        metavar="COLUMN",
        help="rows with one value share a part of their error, e.g. a run's checkpoints; none: every row stands alone "
        "(default: found by name or structure, and said)",
    )
    add("--seed", type=int, default=0, help="seed of the resamples (default: 0)")
    add("--level", type=float, metavar="X", help="level of every interval (default: 0.9)")
    add(
        "--approach",
        type=int,
        default=3,
        choices=(1, 2, 3),
        help="1: best run at each C; 2: IsoFLOP; 3: a law (default)",
    )
    add("--method", metavar="NAME", help="approach 1: hull (default), envelope; approach 2: akima (default), parabola")
    add(
        "--seed-noise",
        action="store_true",
        help="approach 2: weight budgets by the noise of seeds, measured in the table (repeated runs, else residuals), "
        "and give an interval",
    )


def _groups(add: Callable[..., Any]) -> None:
    add("--by", metavar="COLUMN", help="one law for several groups of rows (optimizers, datasets), and how they differ")
    add(
        "--exponents",
        metavar="HOW",
        help="of the groups: shared (default), separate, or pooled: separate, each shrunk towards the mean",
    )
    add(
        "--shared",
        metavar="E[,…]",
        help="further parameters that all groups share, e.g. E where only the optimizer differs",
    )
    add("--against", metavar="GROUP", help="compare groups with this one (default: the first in the table)")


def _uses(add: Callable[..., Any]) -> None:
    add(
        "--target-flops",
        type=parse_numbers,
        default=(),
        metavar="C[,C…]",
        help="print the best N and D, the loss and the waste at C FLOPs",
    )
    add("--target-values", type=parse_pairs, metavar="U=X,…", help="values of the law's other columns at the target")
    add(
        "--holdout",
        type=int,
        metavar="K",
        help="hold out the K largest rows (whole budgets), predict them and score coverage and width",
    )
    add("--tournament", action="store_true", help="score every law that has its columns (K: a fifth by default)")
    add(
        "--figures",
        type=folder_path,
        metavar="DIR",
        help="draw the fit, profiles and decision (approach 2: IsoFLOPs) as PNG, PDF and CSV",
    )
    add(
        "--next-runs",
        type=int,
        metavar="K",
        help="propose the K runs of --grid that narrow --target most for their FLOPs",
    )
    add(
        "--grid",
        metavar="FILE",
        help="a config with sweep(h) (proposals become config files), or a table of candidates",
    )
    add(
        "--grid-columns",
        metavar="N=A,D=B,…",
        help="columns of a --grid table (default: those of --columns that it has, then usual names)",
    )
    add("--budget-flops", type=count_above_zero, metavar="C", help="FLOPs that all proposed runs together may cost")
    add(
        "--determine",
        default="N",
        metavar="NAME",
        help="N (default) or loss at the first target budget, or a parameter",
    )
    add(
        "--configs-out",
        type=folder_path,
        default="next",
        metavar="DIR",
        help="folder for the config files of proposed runs (default: next)",
    )


def _accuracy(add: Callable[..., Any]) -> None:
    add(
        "--accuracy",
        action="store_true",
        help="fit two steps, N and D -> task loss -> accuracy (columns N, D, loss, accuracy), with one joint interval; "
        "--target-values=N=7e9,D=4e12 predicts a run, --holdout=K scores the K largest",
    )
    add(
        "--last-checkpoints",
        type=int,
        metavar="K",
        help="with --accuracy: a run's last K rows tell how much its loss and accuracy scatter (default: 5)",
    )


def _curves(add: Callable[..., Any]) -> None:
    add(
        "--predict-run",
        action="append",
        default=[],
        metavar="RUN",
        help="predict this run's whole curve and score it; one of the sources is held out for it; repeatable",
    )
    add(
        "--schedule-of",
        action="append",
        default=[],
        metavar="CONFIG",
        help="predict the curve of this config's schedule, of which nothing was trained; repeatable",
    )
    add(
        "--best-schedule",
        metavar="FILE.py",
        help="search the schedule that ends lowest by the law, with the runs' warm-up, peak and steps, and write it as "
        "code for schedule.name",
    )


def parse_numbers(text: str) -> tuple[float, ...]:
    """Parse `1e21,1e24` as numbers."""
    try:
        return tuple(parse_count(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, or numbers as in 1e21,1e24") from None


def parse_pairs(text: str) -> dict[str, float]:
    """Parse `N=7B,depth=12` as numbers by name (--target-values, --hold)."""
    pairs = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=NUMBER, as in U=25e9")
        (pairs[name],) = parse_numbers(value)
    return pairs
