"""Score the chance of divergence that `scalelab watch` states, and fit its weights, on runs of which many diverge.

    python -m checks.diagnosis.danger --workdir=runs/danger [--json[=PATH]]

176 runs of 200 steps: three optimizers, learning rates from good to hopeless, with and without clipping. Half of them
choose: the weights of the signs are fitted to them by logistic regression. The others, on other seeds and at twice the
learning rates, only report: chances stated at 5 to 90 % of training against what happened. Writes
`checks/results/danger.json` and `.md`. Five minutes of CPU; run it again to resume.

    python -m checks.diagnosis.danger --workdir=runs/danger
"""

import itertools
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from checks.shared import RESULTS, command_line, result_header
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path
from scalelab.diagnose.watch import danger
from scalelab.diagnose.watch.curve import Curve, read_curve
from scalelab.errors import BadInput
from scalelab.experiments.shared import markdown_table, publish_result, train_trials
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.record import listing

ROOT = pathlib.Path(__file__).parents[2]
LRS = {  # from good to hopeless; Adam and Muon bound their updates, and seldom diverge; reported are those times two
    "adamw": (0.005, 0.03, 0.16, 0.8, 4.0),
    "momentum": (0.05, 0.25, 0.5, 0.7, 0.9, 1.2, 1.6, 2.2, 3.0, 6.0, 15.0, 30.0),
    "muon": (0.005, 0.03, 0.16, 0.8, 4.0),
}
CLIPS = (1.0, 1e9)
PARTS = {"chosen on": ((0, 1), 1.0), "reported": ((10, 11), 2.0)}  # part -> (seeds, factor on LRS)
SMALL = {
    "model.d_model": "32", "model.seq_len": "64", "train.global_batch": "4", "train.steps": "200",
    "eval.every_steps": "200", "eval.batches": "8", "checkpoint.every_steps": "200", "log.every_steps": "1",
}  # fmt: skip
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)  # of training, at which a chance is stated
BINS = (0.0, 0.05, 0.2, 0.5, 0.8, 1.0)
BY_HAND = {"no_better": 0.9, "rising": 0.4, "climbing": 0.15, "large_updates": 0.3, "skips": 0.3, "alarms": 0.2}
RIDGE = 0.1  # on every weight but the intercept's: a sign that no healthy run shows has a finite weight


def make_trials() -> dict[str, ConfigDict]:
    """{name: config} of both parts."""
    made = {}
    for optimizer, lrs in LRS.items():
        base = config_lib.load(ROOT / "configs" / "tiny.py", SMALL | {"optim.name": optimizer})
        for part, (seeds, factor) in PARTS.items():
            for lr, clip, seed in [(factor * lr, clip, seed) for lr in lrs for clip in CLIPS for seed in seeds]:
                values = {"optim.peak_lr": lr, "optim.clip_norm": clip, "train.seed": seed}
                name = f"{part.split()[0]}-{optimizer}-lr{lr:g}-clip{clip:g}-seed{seed}"
                made[name] = config_lib.resolve(config_lib.override(base, values))
    return made


def has_diverged(run: Curve) -> bool:
    """Whether a run ended as diverged, or no better than a uniform guess."""
    return run.val_loss is None or not run.val_loss < run.ceiling


def ask_run(run: Curve) -> list[dict[str, Any]]:
    """A row for each share of training at which the run was still going: its signs, and what became of it."""
    rows = []
    for share in SHARES:
        step = round(share * run.n_steps)
        seen = run.until(step)
        if step >= run.step:
            continue  # it had already been given up
        signs = [name for name, _ in danger.find_signs(seen)]
        rows.append({"run": run.name, "share": share, "signs": signs, "diverged": has_diverged(run)})
    return rows


def fit_weights(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Fit the log odds of divergence, {"intercept", sign: weight}, by Newton's method; weights are not below zero."""
    names = list(danger.WEIGHTS)
    truth = np.array([row["diverged"] for row in rows], float)
    while True:
        x = np.array([[1.0, *(name in row["signs"] for name in names)] for row in rows], float)
        ridge = RIDGE * np.diag([0.0] + [1.0] * len(names))
        theta = np.zeros(x.shape[1])
        for _ in range(50):
            p = 1 / (1 + np.exp(-x @ theta))
            theta -= np.linalg.solve((x.T * (p * (1 - p))) @ x + ridge, x.T @ (p - truth) + ridge @ theta)
        if (theta[1:] >= 0).all():
            return dict(zip(["intercept", *names], map(float, theta), strict=True))
        names = [name for name, weight in zip(names, theta[1:], strict=True) if weight >= 0]


def summarise(rows: Sequence[Mapping[str, Any]], base_rate: float) -> dict[str, Any]:
    """Reliability by bin of the stated chance, and Brier scores: of the chances, and of always saying `base_rate`."""
    chance, truth = (np.array([row[key] for row in rows], float) for key in ("chance", "diverged"))
    place = np.clip(np.digitize(chance, BINS) - 1, 0, len(BINS) - 2)
    table = [
        {
            "from": low,
            "to": high,
            "n": int((place == i).sum()),
            "runs": len({row["run"] for row, own in zip(rows, place, strict=True) if own == i}),
            "stated": float(chance[place == i].mean()),
            "observed": float(truth[place == i].mean()),
        }
        for i, (low, high) in enumerate(itertools.pairwise(BINS))
        if (place == i).any()
    ]
    return {"n": len(rows), "brier": float(np.mean((chance - truth) ** 2)),
            "brier_base_rate": float(np.mean((base_rate - truth) ** 2)), "bins": table}  # fmt: skip


def format_page(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    weights, scored, runs = result["weights"], result["scored"], result["runs"]
    rates = ", ".join(f"{name} at {len(lrs)} rates" for name, lrs in LRS.items())
    lines = [
        "# The chance of divergence, scored", "",
        f"`{result['command']}`, {result['date']}: {result['machine']}", "",
        f"{sum(each['runs'] for each in runs.values())} runs of {SMALL['train.steps']} steps, two blocks of width "
        f"{SMALL['model.d_model']} on bytes: {rates}, each "
        "with clip 1 and without. "
        "A run has diverged if it was given up, or if its validation loss at the end is no better than a uniform guess "
        f"(ln V): {_share(runs['chosen on'])} that choose the weights, {_share(runs['reported'])} that report, on "
        "other seeds and at twice the rates.", "",
        "Log odds: " + ", ".join(f"{name} {weight:+.2f}" for name, weight in weights.items())
        + ". Logistic regression on the choosing runs, with a ridge of "
        f"{RIDGE:g}; a weight below zero is left out. `scalelab/diagnose/watch/danger.py` holds these numbers.", "",
        "## Reliability on the reported runs", "", f"Asked at {', '.join(f'{s:.0%}' for s in SHARES)} of training.", "",
        *markdown_table(
            ("stated chance", "forecasts", "of runs", "mean stated", "share that diverged"),
            [[f"{row['from']:.0%} to {row['to']:.0%}", str(row["n"]), str(row["runs"]), f"{row['stated']:.1%}",
              f"{row['observed']:.1%}"] for row in scored["reported"]["bins"]],
        ), "",
        "## Brier scores, lower is better", "",
        *markdown_table(
            ("", "forecasts", "these chances", "always the choosing runs' base rate", "weights set by hand before"),
            [[part, str(each["n"]), f"{each['brier']:.3f}", f"{each['brier_base_rate']:.3f}",
              f"{each['brier_by_hand']:.3f}"] for part, each in scored.items()],
        ), "",
        *markdown_table(
            ("reported, asked at", *(f"{share:.0%}" for share in SHARES)),
            [["these chances", *(f"{result['by_share'][str(s)]['brier']:.3f}" for s in SHARES)],
             ["base rate", *(f"{result['by_share'][str(s)]['brier_base_rate']:.3f}" for s in SHARES)]],
        ), "",
        "The sign blown_up and its threshold were set after a look at choosing runs alone. A first layout of 120 runs "
        "was scored too (0.033 against 0.135); 18 of them diverged, so SGD got seven more rates, and all were trained "
        "anew. Runs that had been given up are not asked any more. The forecasts of one run are not independent. The "
        "rates were laid out so that many runs diverge: where few do, as in sweeps about a good rate, a stated chance "
        "is too high for the calm (of 2,140 earlier runs of this project, four diverged). One size of model was tried.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _share(part: Mapping[str, int]) -> str:
    return f"{part['diverged']} of {part['runs']}"


def state_chance(signs: Sequence[str], weights: Mapping[str, float]) -> float:
    """The chance under these log odds."""
    return 1 / (1 + math.exp(-weights["intercept"] - sum(weights.get(name, 0.0) for name in signs)))


def chance_by_hand(signs: Sequence[str], share: float) -> float:
    """The chance as it was stated before this study: independent causes with weights set by hand."""
    return 1 - (1 - 0.01 * (1 - share)) * math.prod(1 - BY_HAND.get(name, 0.0) for name in signs)


def score_part(rows: Sequence[Mapping[str, Any]], weights: Mapping[str, float], base_rate: float) -> dict[str, Any]:
    """`summarise` of rows under these weights, with the Brier score of those set by hand before."""
    stated = [{**row, "chance": state_chance(row["signs"], weights)} for row in rows]
    before = [{**row, "chance": chance_by_hand(row["signs"], row["share"])} for row in rows]
    return summarise(stated, base_rate) | {"brier_by_hand": summarise(before, base_rate)["brier"]}


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study (for `scalelab plan --sweep`)."""
    return PlannedStudy(make_trials())


def main(argv: Sequence[str]) -> int:
    """Run the study. Exit code: 0 measured, 1 a sweep failed, 2 bad input, 75 stopped."""
    return guarded("danger", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("diagnosis.danger", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    options = parser.parse_args(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")
    train_trials(options.workdir, make_trials())
    curves = [read_curve(place, ahead=False) for place in listing.run_folders(options.workdir)]
    parts = {part: [run for run in curves if run.name.startswith(part.split()[0])] for part in PARTS}
    rows = {part: [row for run in runs for row in ask_run(run)] for part, runs in parts.items()}
    weights = fit_weights(rows["chosen on"])
    rate = float(np.mean([row["diverged"] for row in rows["chosen on"]]))
    result = result_header("diagnosis.danger", argv) | {
        "runs": {part: {"runs": len(runs), "diverged": sum(map(has_diverged, runs))} for part, runs in parts.items()},
        "weights": weights,
        "scored": {part: score_part(each, weights, rate) for part, each in rows.items()},
        "by_share": {
            str(s): score_part([row for row in rows["reported"] if row["share"] == s], weights, rate) for s in SHARES
        },
    }
    return publish_result(RESULTS, "danger", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
