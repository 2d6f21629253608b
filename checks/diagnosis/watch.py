"""Score `scalelab watch` on quickstarts: do its intervals hold, and what does a stop rule save and cost?

    python -m checks.diagnosis.watch --workdir=runs/confirm [--quick]

The runs are those of checks.statistics.confirm (31 a study: 26 of the grid, 4 checks, the held-out one) and of one more
study on seed 0, split 0, on which the width of the interval was chosen; what is missing is trained first. Every run is
forecast from its curve up to 10 to 90 % of its steps, with the other 30 as finished siblings (leave one run out: the
law is fitted again without it). Then the grid of each study is replayed trial after trial under
--stop-if="p_worse_than_best > 0.95", with the recorded curves: only trials before it that ran to their end are known.
Writes `checks/results/watch.json` and `.md`; --quick trains two grids of 12 very small runs instead, in three minutes
on 2 cores, and writes beside the runs. Run it again to resume: each study's forecasts are kept beside its runs.

    python -m checks.diagnosis.watch --workdir=runs/confirm --quick
"""

import math
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from checks.shared import RESULTS, command_line, result_header
from checks.statistics import confirm
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path, print_status
from scalelab.diagnose.watch import forecast as forecast_lib
from scalelab.diagnose.watch.curve import Curve, read_curve
from scalelab.diagnose.watch.family import (
    INFLATION,
    Estimate,
    choose_siblings,
    estimate_from_family,
    final_train_loss,
    fit_family_law,
)
from scalelab.diagnose.watch.rivals import find_rivals
from scalelab.diagnose.watch.stop import judge_run
from scalelab.errors import BadInput
from scalelab.experiments.shared import markdown_table, publish_result, train_trials
from scalelab.experiments.studies import outcome
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.record import listing, records
from scalelab.study import write_once

CHOSEN_ON = (0, 0)  # (seed, split) on which the forecast's constants were chosen
SHARES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)
RULE = "p_worse_than_best > 0.95"
LOOKS = [i / 20 for i in range(2, 20)]  # shares at which the rule is asked: every 5 %, as in a sweep
RESULT_FILE = "watch.json"  # of a study, beside its runs
ROOT = pathlib.Path(__file__).parents[2]
# Of --quick: widths, steps of each, and the rate that has no chance, once a width; other seeds are other studies.
QUICK_WIDTHS, QUICK_STEPS, QUICK_LR, QUICK_HOPELESS, QUICK_SEEDS = (16, 24, 32), (60, 120, 240), 1e-2, 1e-4, (0, 4)


def make_quick_trials(seed: int) -> dict[str, ConfigDict]:
    """{name: config} of a study of --quick: a grid of widths and lengths, and a hopeless twin of each longest run."""
    cells = [(width, steps, QUICK_LR) for width in QUICK_WIDTHS for steps in QUICK_STEPS]
    cells += [(width, QUICK_STEPS[-1], QUICK_HOPELESS) for width in QUICK_WIDTHS]
    return {
        f"fit-d{width}-s{steps}-lr{lr:g}": config_lib.resolve(config_lib.load(ROOT / "configs" / "quickstart.py", {
            "model.d_model": str(width), "train.steps": str(steps), "optim.peak_lr": str(lr), "train.seed": str(seed),
            "eval.every_steps": str(steps), "checkpoint.every_steps": str(steps), "eval.batches": "16",
            "log.every_steps": str(max(1, steps // 80)), "train.steps_per_dispatch": "20",
        })) for width, steps, lr in cells
    }  # fmt: skip


def score_study(folder: pathlib.Path) -> dict[str, Any]:
    """The forecasts of all runs of a study, and the replay of its grid; read again if they were written."""

    def score() -> dict[str, Any]:
        curves = [read_curve(place) for place in listing.run_folders(folder)]
        curves = [curve for curve in curves if curve.val_loss is not None]
        rows = []
        for number, run in enumerate(curves, 1):
            rows += score_run(run, curves)
            print_status(f"{folder.name}: forecasts of {number} of {len(curves)} runs")
        grid = [curve for curve in curves if curve.name.startswith("fit-")]
        return {"runs": len(curves), "rows": rows, "replay": replay(grid, folder.name)}

    scored: dict[str, Any] = write_once(folder / RESULT_FILE, score)
    return scored


def score_run(run: Curve, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """A row for each share and each way: from the family, and from the run's own curve."""
    siblings = choose_siblings(run, curves)
    law = fit_family_law(siblings)
    rows = []
    for share in SHARES:
        seen = run.until(round(share * run.n_steps))
        for target, truth in (("val", math.log(run.val_loss or math.nan)), ("train", final_train_loss(run))):
            known = estimate_from_family(seen, siblings, law, f"{target}_loss")
            rows += [_row(run.name, share, f"family, {target}", known, truth)]
        alone = forecast_lib.forecast_run(seen)
        rows += [_row(run.name, share, "own curve, val", alone.val, math.log(run.val_loss or math.nan))]
    return rows


def _row(name: str, share: float, way: str, estimate: Estimate | None, truth: float) -> dict[str, Any]:
    if estimate is None:
        return {"run": name, "share": share, "way": way, "z": None, "error": None, "width": None}
    low, high = (math.log(end) for end in estimate.interval(forecast_lib.LEVEL))
    z = (truth - estimate.mean) / ((high - low) / 2)  # 1: at the end of the interval
    return {"run": name, "share": share, "way": way, "z": z, "error": truth - estimate.mean, "width": high - low}


def replay(grid: Sequence[Curve], name: str) -> dict[str, Any]:
    """Replay the trials of a grid one after another under RULE: what was stopped, saved, and lost against the best."""
    finished: list[Curve] = []
    stopped: dict[str, float] = {}
    for run in grid:
        for share in LOOKS:
            if judge_run(run.until(round(share * run.n_steps)), finished, RULE):
                stopped[run.name] = share
                break
        if run.name not in stopped:
            finished.append(run)
        print_status(f"{name}: replayed {run.name}: {'stopped' if run.name in stopped else 'to its end'}")
    groups = {min(x.name for x in [run, *find_rivals(run, grid)]): [run, *find_rivals(run, grid)] for run in grid}
    regrets = [_regret(group, stopped) for group in groups.values()]
    spent = sum(stopped.get(run.name, 1.0) * run.flops for run in grid)
    wrong = [n for n in stopped if any(n == min(group, key=_final).name for group in groups.values())]
    return {"stopped": stopped, "trials": len(grid), "saved": 1 - spent / sum(run.flops for run in grid),
            "regret": max(regrets), "regrets": regrets, "best_stopped": wrong}  # fmt: skip


def _regret(group: Sequence[Curve], stopped: dict[str, float]) -> float:
    """How much the best trial that was left is above the best of all, relative."""
    left = [_final(run) for run in group if run.name not in stopped]
    return min(left) / min(map(_final, group)) - 1


def _final(run: Curve) -> float:
    return run.val_loss or math.inf


def summarise(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The share of intervals that held, mean error and width; of rows with a forecast."""
    good = [row for row in rows if row["z"] is not None]
    z, error = (np.array([row[key] for row in good]) for key in ("z", "error"))
    return {
        "n": len(good), "inside": float(np.mean(np.abs(z) <= 1)), "rms_error": float(np.sqrt(np.mean(error**2))),
        "width": float(np.mean([row["width"] for row in good])),
    }  # fmt: skip


def choose_inflation(rows: Iterable[dict[str, Any]]) -> float:
    """The factor on the interval without inflation that holds 90 % of the family's forecasts of one study."""
    z = [abs(row["z"]) for row in rows if row["way"] == "family, val" and row["z"] is not None]
    return INFLATION * float(np.quantile(z, forecast_lib.LEVEL))


def make_tables(studies: dict[str, Any], chosen: str) -> dict[str, Any]:
    """Tables by way and share: over the studies that chose nothing, and over the one that did."""
    tables = {}
    for title, names in (("others", [n for n in studies if n != chosen]), ("chosen_on", [chosen])):
        rows = [row for name in names for row in studies[name]["rows"]]
        ways = dict.fromkeys(row["way"] for row in rows)
        tables[title] = {
            way: {str(s): summarise(r for r in rows if r["way"] == way and r["share"] == s) for s in SHARES}
            | {"all": summarise(r for r in rows if r["way"] == way)}
            for way in ways
        }
    return tables


def format_page(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    others = result["tables"]["others"]
    lines = [
        "# Forecasts of the final loss, scored", "",
        f"`{result['command']}`, {result['date']}, {result['machine']}. Runs trained by {result['trained_by']}.", "",
        f"{len(result['studies']) - 1} studies of {'12 very small' if result['quick'] else '31'} runs. The width of "
        f"the interval was chosen on {result['chosen_on']} alone, where the factor that holds 90 % is "
        f"{result['inflation_there']:.2f} (used: {result['inflation']:.2f}). The form of the "
        "regression and its window were compared by their errors on all "
        "six studies, so the errors, and not the coverage, may be a little flattering; the term for runs beyond their "
        "siblings was added after the replays of two studies were seen.", "",
        "Share of the 90 % intervals that held the measured loss; root mean square of the error in ln loss, mean "
        "width:", "",
        *markdown_table(
            ("forecast from", *(f"{share:.0%}" for share in SHARES), "all"),
            [[way, *(_cell(table[str(s)]) for s in (*SHARES, "all"))] for way, table in others.items()],
        ), "",
        "Family: the other 30 runs of the study are finished (leave one run out), and their law is fitted without the "
        "run. Own curve: nothing else is known, the gap between training and validation included, for which the "
        "interval makes room.", "",
        f"## Trials ended by `--stop-if=\"{RULE}\"`", "",
        "The grid of each study, trial after trial, smallest budget first; the rule is asked every 5 % from 10 % on. "
        "Rivals are the runs of the same FLOPs. Saved: share of the grid's FLOPs. Regret: best loss left over the best "
        "of all, the largest of the four budgets.", "",
        *markdown_table(
            ("study", "stopped", "saved", "regret", "best trials stopped"),
            [[name, f"{len(each['replay']['stopped'])} of {each['replay']['trials']}", f"{each['replay']['saved']:.1%}",
              f"{each['replay']['regret']:.2%}", ", ".join(each["replay"]["best_stopped"]) or "none"]
             for name, each in result["studies"].items()],
        ), "",
        "The runs of a study share text and recipe, and seven shares of one run are not independent: the counts are "
        "worth less than their number. No run diverged: the chance of divergence is scored in [danger.md](danger.md), "
        "the loss after a stop or a decay now in [choices.md](choices.md).", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    return f"{row['inside']:.0%} ({row['rms_error']:.1%}, {row['width']:.1%})"


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of the studies that are scored (for `scalelab plan --sweep`)."""
    if "--quick" not in arguments:
        return confirm.plan([])
    studies = {name_study(seed, 0): make_quick_trials(seed) for seed in QUICK_SEEDS}
    return PlannedStudy({f"{study}/{name}": trial for study, each in studies.items() for name, trial in each.items()})


def name_study(seed: int, split: int) -> str:
    """The folder of a study."""
    return f"seed{seed}-split{split}"


def main(argv: Sequence[str]) -> int:
    """Score the studies; exit code 0, or that of the study that did not end."""
    return guarded("watch", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("diagnosis.watch", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the studies are, or go")
    parser.add_argument("--quick", action="store_true", help="two grids of 12 very small runs, as a test: 3 minutes")
    options = parser.parse_args(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the studies are, or go")
    studies, versions = {}, set()
    for seed, split in [(seed, 0) for seed in QUICK_SEEDS] if options.quick else (CHOSEN_ON, *confirm.STUDIES):
        name = name_study(seed, split)
        with outcome.count_seconds(options.workdir):
            if not options.quick:
                confirm.run_quickstart(options.workdir, seed, split, 1.0)
            else:
                train_trials(options.workdir / name, make_quick_trials(seed))
            studies[name] = score_study(options.workdir / name)
        record = records.read_record(listing.run_folders(options.workdir / name)[0])
        versions.add(f"scalelab {record['versions']['scalelab']} with jax {record['versions']['jax']}")
    chosen = name_study(*CHOSEN_ON)
    result = (
        result_header("diagnosis.watch", argv)
        | outcome.read_seconds(options.workdir)
        | {
            "quick": options.quick,
            "trained_by": ", ".join(sorted(versions)),
            "chosen_on": chosen,
            "inflation": INFLATION,
            "inflation_there": choose_inflation(studies[chosen]["rows"]),
            "tables": make_tables(studies, chosen),
            "studies": {name: {"runs": each["runs"], "replay": each["replay"]} for name, each in studies.items()},
        }
    )
    place = options.workdir if options.quick else RESULTS
    return publish_result(place, "watch", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
