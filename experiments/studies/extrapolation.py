"""Extrapolation, for real: small runs up to 1.6e12 FLOPs predict one of 1e14, 62 times beyond; then it is trained.

    python -m experiments.studies.extrapolation [--workdir=DIR] [--quick] [--json[=PATH]]

The IsoFLOP study (`scalelab isoflop`) on five budgets and seven sizes, over the Python files of the installed packages
(about 150 MB, equal files once), so that no run sees a byte twice. The law's prediction is written to prediction.json
before the larger run begins, and never edited. It is scored beside two that know less: a straight line, in logarithms,
through the best loss of each budget, and the best loss of the largest budget as it is. One to two hours on two cores;
an interrupted study resumes. --quick: three budgets and a run 16 times beyond. Expected: inside the law's 90 %
interval. Source: Hoffmann et al. (2022), "Training Compute-Optimal Large Language Models", approaches 2 and 3.

    scalelab study extrapolation --quick --workdir=runs/extrapolation
"""

import pathlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scalelab.experiments import isoflop
from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies import outcome
from scalelab.record import records
from scalelab.report.figures.style import ACCENT, INK, add_axes_legend, make_figure, set_log_axis, styled, value_colours

DATA = "scalelab.experiments.studies.extrapolation:installed_files"
GRID = ("--budgets=1e11,2e11,4e11,8e11,1.6e12", "--sizes=16,24,32,40,48,64,80", "--holdout-flops=1e14")
QUICK_GRID = ("--budgets=5e10,1e11,2e11", "--sizes=16,24,32,48", "--holdout-flops=3.2e12")
TOLERANCE = 0.03  # of the loss: what a forecast of the quickstart must not exceed either
PAPER = "the law (Hoffmann et al. 2022)"


def installed_files(_: str) -> Iterator[bytes]:
    """`data.source`: every Python file of the installed packages, sorted by path, equal ones once."""
    root, seen = pathlib.Path(sysconfig.get_paths()["purelib"]), set()
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        if text not in seen:
            seen.add(text)
            yield text


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The study's summary with its checks."""
    grid = QUICK_GRID if quick else GRID
    code = isoflop.main([*grid, f"--config.data.source={DATA}", f"--workdir={folder}"])
    if code not in (0, 1):  # 1: a check of the rule is at the edge, which the page shows
        sys.exit(code)
    summary = records.read_json(folder / "summary.json")
    runs = [run for run in summary["runs"] if run["role"] == "fit"]
    held_out, fit = summary["held_out"], summary["fit"]
    line = extrapolate_line([run["C"] for run in runs], [run["loss"] for run in runs], held_out["C"])
    best = min(run["loss"] for run in runs)
    begun = records.read_events(held_out["folder"])[0]["time"]
    return {
        "runs": runs, "held_out": held_out, "params": fit["params"], "line": line, "best_loss": best,
        "frontier": summary["frontier"], "rule": summary["ladder"]["text"], "lead_s": begun - held_out["predicted_at"],
        "edges": [check for kind in ("lr", "batch") for check in summary[f"{kind}_checks"]],
        "checks": list_checks(held_out), "finding": describe_finding(held_out, runs, line, best),
        "limits": "one held-out run of one seed: it says that this interval held or not, nothing about 90 % of them. "
        f"The ladder's rule covers widths to 80, so the larger run has {held_out['N']:.3g} parameters and "
        f"{held_out['D'] / held_out['N']:.0f} tokens each: its budget is spent on tokens, and what is extrapolated is "
        "mostly the law's term of the data. Where half or twice the rule's rate or batch is best in the table, runs of "
        "that size are worse than they could be, and the fitted exponents hang on it. The corpus is the code that "
        "happens to be installed.",
    }  # fmt: skip


def extrapolate_line(flops: Sequence[float], losses: Sequence[float], target: float) -> float:
    """The loss at `target` FLOPs on the line, in logarithms, through the best loss of each budget.

    Budgets are told apart by two digits: runs have whole steps, and miss theirs by up to a percent.
    """
    budgets = [f"{value:.1e}" for value in flops]
    points = [
        min(pair for pair, b in zip(zip(losses, flops, strict=True), budgets, strict=True) if b == each)
        for each in sorted(set(budgets))
    ]
    slope, offset = np.polyfit(np.log([point[1] for point in points]), np.log([point[0] for point in points]), 1)
    return float(np.exp(offset + slope * np.log(target)))


def list_checks(held_out: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The measured loss in the interval, and the error."""
    low, high = held_out["interval90"]
    return [
        outcome.compare_with(
            held_out["predicted_loss"],
            PAPER,
            f"loss at {held_out['C']:.2g} FLOPs",
            held_out["measured_loss"],
            low,
            high,
            "nats",
        ),
        outcome.compare_with(0, "goal", "error of the prediction", held_out["error"], -TOLERANCE, TOLERANCE),
    ]


def describe_finding(held_out: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], line: float, best: float) -> str:
    """One sentence: prediction, measurement, and what knowing less would have said."""
    low, high = held_out["interval90"]
    return (
        f"{len(runs)} runs of at most {max(run['C'] for run in runs):.2g} FLOPs predicted "
        f"{held_out['predicted_loss']:.4f} nats ({low:.4f} to {high:.4f}) for one of {held_out['C']:.2g}; it reached "
        f"{held_out['measured_loss']:.4f} (error {held_out['error']:+.2%}), where a line through the budgets' best "
        f"losses says {line:.4f} and the best small run {best:.4f}."
    )


@styled
def plot_extrapolation(result: Mapping[str, Any]) -> Figure:
    """Loss over compute: the small runs, the law's band with the prediction, and the larger run."""
    fig, ax = make_figure(7.2, 4.2)
    for size, colour in value_colours([run["N"] for run in result["runs"]]).items():
        chosen = sorted((run["C"], run["loss"]) for run in result["runs"] if run["N"] == size)
        ax.plot(*zip(*chosen, strict=True), "o-", ms=3, lw=0.8, color=colour, label=f"{size:.3g} parameters")
    band, held_out = result["frontier"], result["held_out"]
    ax.fill_between(band["C"], band["low"], band["high"], color=INK, alpha=0.15, lw=0, label="law, 90 % of a new run")
    low, high = held_out["interval90"]
    ax.vlines(held_out["C"], low, high, color=INK, lw=1.5)
    ax.plot(held_out["C"], held_out["predicted_loss"], "D", ms=5, mfc="white", color=INK, label="predicted before")
    ax.plot(held_out["C"], held_out["measured_loss"], "*", ms=11, color=ACCENT, label="trained after")
    ax.plot(held_out["C"], result["line"], "x", ms=6, color=INK, label="line through the best of each budget")
    set_log_axis(ax)
    ax.set(xlabel="training compute (FLOPs)", ylabel="validation loss (nats/byte)")
    add_axes_legend(fig, ax, fontsize=7)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """How it was done, the law, and the checks of learning rate and batch."""
    params = ", ".join(f"{name} {value:.4g}" for name, value in result["params"].items())
    checks = [
        [f"{each['d_model']}", f"{each['run']}", f"{each['factor']:g}", f"{each['loss']:.4f}"]
        for each in result["edges"]
    ]
    return [
        f"Prediction written {result['lead_s']:.0f} s before the larger run began. Law: {params}. "
        f"Ladder: {result['rule']}.",
        "", "Learning rate and batch, at the rule's value and at half and twice it:", "",
        *markdown_table(("width", "run", "factor", "loss"), checks),
    ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("extrapolation", __doc__, argv, measure, plot_extrapolation, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
