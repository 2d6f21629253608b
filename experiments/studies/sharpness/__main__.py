"""Sharpness at the edge of stability: the Hessian's largest eigenvalue settles where the learning rate lets it.

    python -m experiments.studies.sharpness [--workdir=DIR] [--quick] [--json[=PATH]]

A small transformer is trained on one batch of text in full, so that every step is a step of descent on one function.
Lanczos on Hessian-vector products of its loss gives the sharpness along the way. Cohen et al. (2021, 2022): it settles
at 2 / LR under gradient descent, (2 + 2 beta) / LR with momentum, and, preconditioned, at 38 / LR under Adam with beta1
.9. Then the largest learning rate that trains, with and without warm-up (Gilmer et al. 2021), and the sharpness under
small batches (Keskar et al. 2017). Eight minutes, three seeds; --quick: one seed, one rate for each optimizer.

    scalelab study sharpness --quick --workdir=runs/sharpness
"""

import functools
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scalelab.cli.parser import print_status
from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.sharpness.runs import (
    BATCH_LR,
    CHECKS,
    EDGES,
    EVERY,
    ROWS,
    SMALL_BATCH,
    WARMUP_RATES,
    WARMUP_STEPS,
    follow,
    largest_rates,
    late,
)
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, set_log_axis, styled

SEEDS, QUICK_SEEDS = 3, 1
ALLOWED = (0.8, 1.3)  # of sharpness x LR over the edge: "at or just above" (Cohen et al. 2021)


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    runs: dict[str, dict[str, list[Any]]] = {}
    for optimizer, (_, rates) in EDGES.items():
        for lr in rates[-1:] if quick else rates:
            each = [_once(folder, follow, optimizer, lr, seed) for seed in seeds]
            runs.setdefault(optimizer, {})[f"{lr:g}"] = each
            ratio = [late(run) * lr / EDGES[optimizer][0] for run in each]
            print_status(f"{optimizer}, LR {lr:g}: sharpness x LR over the edge {np.mean(ratio):.2f}")
    noisy = [_once(folder, follow, "gradient descent", BATCH_LR, seed, SMALL_BATCH) for seed in seeds]
    whole = [_once(folder, follow, "gradient descent", BATCH_LR, seed) for seed in seeds]
    print_status(f"batches of {SMALL_BATCH}: {np.mean([late(run) for run in noisy]):.3g}")
    rates = {
        name: [_once(folder, largest_rates, name, seed) for seed in seeds] for name in ("gradient descent", "Adam")
    }
    ratios = {
        name: [late(run) * float(lr) / EDGES[name][0] for lr, each in by_rate.items() for run in each]
        for name, by_rate in runs.items()
    }
    flat = [late(a) / late(b) for a, b in zip(noisy, whole, strict=True)]
    gains = {
        name: float(2 ** np.mean([np.log2(row["with"] / row["without"]) for row in each]))
        for name, each in rates.items()
    }
    return {
        "seeds": len(seeds), "runs": runs, "small_batch": noisy, "largest_rates": rates, "ratios": ratios,
        "checks": list_checks(ratios, flat, gains),
        "finding": "Sharpness times learning rate settles at "
        + ", ".join(f"{np.mean(each):.2f} of its edge under {name}" for name, each in ratios.items())
        + f"; batches of {SMALL_BATCH} instead of {ROWS} sequences end {np.mean(flat):.2f} times as sharp; the "
        "largest rate that trains is "
        + ", ".join(f"{gain:.1f} times as high with warm-up under {name}" for name, gain in gains.items())
        + " (to a factor of 2, the step of the grid).",
        "limits": "one layer, 32 short sequences, thousands of steps on the same batch: far from pretraining, where "
        "each batch is new. Cross-entropy flattens where all is fitted, so later values would fall below the edge. "
        "Gradient descent at its lowest rate is still on its way to the edge, and at the others starts above it. "
        "Flatness is not generalisation; here nothing is held out.",
    }  # fmt: skip


def _once(folder: pathlib.Path, function: Callable[..., Any], *arguments: Any) -> Any:
    part = "-".join([function.__name__, *map(str, arguments)]).replace(" ", "_")
    settings = {"steps": WARMUP_STEPS, "rates": WARMUP_RATES}
    if function is follow:
        settings = {"every": EVERY, "checks": CHECKS}
    return outcome.measure_once(folder, part, settings, functools.partial(function, *arguments))


def list_checks(
    ratios: Mapping[str, list[float]], flat: Sequence[float], gains: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Each edge, the small batch and warm-up."""
    names = {"gradient descent": "2 / LR", "momentum 0.9": "3.8 / LR", "Adam": "38 / LR, preconditioned"}
    checks = [
        outcome.compare_with(
            1, "Cohen et al. 2021, 2022", f"{name}: sharpness over {names[name]}", np.mean(each), *ALLOWED
        )
        for name, each in ratios.items()
    ]
    return [
        *checks,
        outcome.compare_with(1, "below 1: Keskar et al. 2017", f"sharpness, batch {SMALL_BATCH} over batch {ROWS}",
                             float(np.mean(flat)), 0, 0.9),
        *(outcome.compare_with(1, "above 1: Gilmer et al. 2021", f"{name}: largest rate with warm-up over without",
                               gain, 1.01, 64) for name, gain in gains.items()),
    ]  # fmt: skip


@styled
def plot_sharpness(result: Mapping[str, Any]) -> Figure:
    """Sharpness over its edge, along the runs of each optimizer; a line a rate, the mean of seeds."""
    fig, axes = make_figure(8.8, 3.2, len(EDGES))
    for ax, (optimizer, by_rate) in zip(axes, result["runs"].items(), strict=True):
        styles = zip(by_rate.items(), (("o-", INK), ("s--", ACCENT), ("^:", MUTED)), strict=False)
        for (lr, runs), (style, colour) in styles:
            values = np.mean([run["sharpness"] for run in runs], axis=0) * float(lr) / EDGES[optimizer][0]
            steps = EVERY * (np.arange(len(values)) + (optimizer == "Adam"))
            ax.plot(steps, values, style, ms=3, lw=1, color=colour, label=f"LR {lr}")
        ax.axhline(1, color=MUTED, lw=0.8)
        set_log_axis(ax, "y")
        ax.set(xlabel="step", title=optimizer)
        add_axes_legend(fig, ax)
    axes[0].set(ylabel="sharpness x LR, over the edge")
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    rows = []
    for optimizer, by_rate in result["runs"].items():
        for lr, runs in by_rate.items():
            values = [late(run) for run in runs]
            losses = ", ".join(f"{run['losses'][-1]:.3f}" for run in runs)
            edge = f"{EDGES[optimizer][0] / float(lr):.4g}"
            rows.append([optimizer, lr, edge, ", ".join(f"{value:.3g}" for value in values), losses])
    small = ", ".join(f"{late(run):.3g}" for run in result["small_batch"])
    rows.append([f"batches of {SMALL_BATCH}", f"{BATCH_LR:g}", f"{2 / BATCH_LR:g}", small,
                 ", ".join(f"{run['losses'][-1]:.3f}" for run in result["small_batch"])])  # fmt: skip
    columns = ("optimizer", "LR", "edge", "sharpness, each seed", "last losses (nats/token)")
    rates = [
        f"Largest rate that trains in {WARMUP_STEPS} steps under {name}, each seed: "
        + "; ".join(f"{row['with']:g} with warm-up, {row['without']:g} without" for row in rows)
        + "."
        for name, rows in result["largest_rates"].items()
    ]
    return [f"Sharpness: medians of the last {CHECKS // 2} of {CHECKS} measurements, {EVERY} steps apart; from below, "
            "by 12 Lanczos products. The check of warm-up under gradient descent was added after Adam's was known.",
            "", *markdown_table(columns, rows), "", *rates]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("sharpness", __doc__, argv, measure, plot_sharpness, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
