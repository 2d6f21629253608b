"""Experts at equal active compute: does the loss fall as parameters are added that a token does not use?

    python -m experiments.studies.experts [--workdir=DIR] [--quick] [--json[=PATH]]

IsoFLOP curves of the quickstart's family on bytes: three widths, several budgets of active compute, and 1, 2, 4 and 8
times as many experts as a token uses (two, together as wide as the dense MLP), so that 0, 1/2, 3/4 and 7/8 of them are
idle; three seeds. The joint law of active parameters, tokens and experts (Ludziejewski et al. 2025, eq. 6, exponents
held equal for all numbers of experts) is fitted to all of them. Before it begins, a run of 8 times the experts, wider
and of 4 times the compute is predicted. At one cell a bias outside the gradient (Wang et al. 2024) stands beside the
loss of the Switch Transformer and no balance: load and loss. Fifteen CPU minutes; --quick: smaller budgets, at most 5
minutes on 2 cores. Expected: the loss falls with experts (Clark et al. 2022, Abnar et al. 2025), and is not higher with
the bias.

    scalelab study experts --quick --workdir=runs/experts
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scalelab.api.door import train_in_pool
from scalelab.cli.parser import print_status
from scalelab.cli.terminal import Terminal, print_report
from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.experts import answers, runs
from scalelab.record import listing
from scalelab.report.figures.style import ACCENT, INK, add_axes_legend, make_figure, set_log_axis, styled, value_colours

TOLERANCE = 0.03  # of the loss: what a forecast of the quickstart must not exceed either
WORSE = 0.02  # nats, 1 % of the loss: within it one way to balance is as good as another
LIMITS = (
    "models of at most 0.2 M parameters on bytes, two blocks, runs of hundreds to thousands of steps. Learning rates "
    "come from a rule of dense models of this family: experts may want others, and see fewer tokens each. There are "
    "three widths; a best one at their edge makes a comparison of sizes, not of optima; it is chosen on the seeds "
    "that are compared. FLOPs count useful products alone, not the router's choice, sorting or sending, which cost "
    "more here than experts save: it is a study of losses, not of time. The law's exponents are held equal for all "
    "numbers of experts, and three widths within a factor of 3.3 in active parameters hardly determine the exponent "
    "of N, as the cells left out show: a law may carry over to twice the compute and not to a wider model, which the "
    "predicted run is. One larger run of one seed says that this interval held or not. A bias of 1e-2 a step "
    "suits short runs; nothing here tells what 1e-3 does over tens of thousands of steps."
)


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    budgets = runs.QUICK_BUDGETS if quick else runs.BUDGETS
    grid, larger = runs.make_grid(budgets), runs.make_larger(budgets)
    settings, cell = {"budgets": list(budgets), "law": answers.LAW, "fixed": answers.FIXED}, runs.larger_cell(budgets)
    with train_in_pool(folder, next(iter(grid.values())), False, Terminal(), print_report) as train:
        train(grid)
        losses = read_grid(folder, budgets)
        predict = lambda: answers.predict_cell(answers.fit_law(losses), cell)  # noqa: E731
        predicted = outcome.measure_once(folder, "prediction", settings, predict, [folder / name for name in larger])
        print_status(f"predicted for x{cell[0]}, d_model {cell[1]}, {cell[2]:.2g} FLOPs: {predicted['loss']:.4f}")
        train(larger | runs.make_balanced(budgets))
    rows = [row for budget in budgets for row in answers.compare_with_dense(losses, budget)]
    result = {
        "budgets": list(budgets), "seeds": len(runs.SEEDS), "rows": rows,
        "cells": [{"expansion": x, "width": w, "budget": b, "losses": y} for (x, w, b), y in losses.items()],
        "held": hold_out_edges(losses, budgets),
        "predicted": predicted | {"measured": runs.read_loss(find_runs(folder)[next(iter(larger))])},
        "balance": answers.compare_balances(read_balances(folder, budgets)),
    }  # fmt: skip
    return result | {"checks": list_checks(result), "finding": describe_finding(result), "limits": LIMITS}


def hold_out_edges(losses: answers.Losses, budgets: Sequence[float]) -> dict[str, dict[str, Any]]:
    """The joint law without the largest budget, and without the largest width, on the cells that it lacks."""
    most, widest = max(budgets), max(runs.WIDTHS)
    return {
        f"{most:.2g} FLOPs": answers.hold_out(losses, lambda cell: cell[2] == most),
        f"d_model {widest}": answers.hold_out(losses, lambda cell: cell[1] == widest),
    }


def find_runs(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """{name: folder} of the study's runs."""
    return {place.name: place for place in listing.run_folders(folder)}


def read_grid(folder: pathlib.Path, budgets: Sequence[float]) -> dict[runs.Cell, list[float]]:
    """The grid's losses by seed."""
    places = find_runs(folder)
    return {
        cell: [runs.read_loss(places[runs.name_trial(cell, seed)]) for seed in runs.SEEDS]
        for cell in runs.list_cells(budgets)
    }


def read_balances(folder: pathlib.Path, budgets: Sequence[float]) -> dict[str, list[dict[str, float]]]:
    """{way to balance: loss and load by seed}."""
    cell, places = runs.balanced_cell(budgets), find_runs(folder)
    names = {
        arm: [places[runs.name_trial(cell, seed, arm if values else "")] for seed in runs.SEEDS]
        for arm, values in runs.BALANCES.items()
    }
    return {arm: [{"loss": runs.read_loss(run)} | runs.read_load(run) for run in each] for arm, each in names.items()}


def _largest(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of the largest budget, by expansion."""
    return [row for row in result["rows"] if row["budget"] == max(result["budgets"])]


def list_checks(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Known values beside ours; each can fail."""
    compare, rows, predicted = outcome.compare_with, _largest(result), result["predicted"]
    last, (low, high) = rows[-1], predicted["interval90"]
    balance = result["balance"]["differences"]
    return [
        compare(0, "sign: Clark et al. 2022; upper end of a 95 % interval",
                f"x{last['expansion']} experts less dense, {last['budget']:.2g} FLOPs", last["high"], -1, 0, "nats"),
        compare(len(rows) - 1, "sign: Abnar et al. 2025", "falls of the loss from one number of experts to the next",
                answers.count_falls(rows), len(rows) - 1, len(rows) - 1),
        compare(predicted["loss"], "the joint law, before the run; 90 % interval of a run",
                f"x{predicted['expansion']} experts, d_model {predicted['width']}, {predicted['budget']:.2g} FLOPs",
                predicted["measured"], low, high, "nats"),
        compare(0, "goal", "error of the prediction", predicted["measured"] / predicted["loss"] - 1, -TOLERANCE,
                TOLERANCE),
        compare(0, "Wang et al. 2024: the bias is not worse; lower end of a 95 % interval", "bias less aux: loss",
                balance["loss"]["low"], -1, WORSE, "nats"),
        compare(0, "sign: Wang et al. 2024; lower end of a 95 % interval", "bias less aux: largest load over the mean",
                balance["imbalance"]["low"], -8, 0),
    ]  # fmt: skip


def describe_finding(result: Mapping[str, Any]) -> str:
    """One sentence with the numbers."""
    rows, predicted, arms = _largest(result), result["predicted"], result["balance"]["arms"]
    gains = ", ".join(f"{row['mean']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})" for row in rows[1:])
    numbers = ", ".join(f"{row['expansion']}" for row in rows[1:])
    low, high = predicted["interval90"]
    place = "inside" if low <= predicted["measured"] <= high else "outside"
    loads = ", ".join(f"{arm} {each['imbalance']:.2f} at {each['loss']:.3f} nats" for arm, each in arms.items())
    return (
        f"At {rows[0]['budget']:.2g} active FLOPs {numbers} times as many experts as a token uses change the loss by "
        f"{gains} nats against the dense model (95 %, 3 seeds); the joint law predicted {predicted['loss']:.3f} "
        f"({low:.3f} to {high:.3f}) for a run of {predicted['budget']:.2g} FLOPs, which reached "
        f"{predicted['measured']:.3f}, {place} of it; largest load over the mean: {loads}."
    )


@styled
def plot_losses(result: Mapping[str, Any]) -> Figure:
    """Loss over width for each number of experts at the largest budget, and the best losses over all parameters."""
    fig, (left, right) = make_figure(9.0, 3.8, 2)
    budgets, most = result["budgets"], max(result["budgets"])
    shades = value_colours(runs.EXPANSIONS)
    for expansion, colour in shades.items():
        chosen = [cell for cell in result["cells"] if (cell["expansion"], cell["budget"]) == (expansion, most)]
        points = [(runs.measure_model(expansion, cell["width"])["active"], cell["losses"]) for cell in chosen]
        left.plot([n for n, _ in points], [np.mean(each) for _, each in points], "o-", ms=3, color=colour)
        left.plot(
            *zip(*[(n, x) for n, each in points for x in each], strict=True),
            "o",
            ms=2,
            color=colour,
            alpha=0.4,
            label=f"x{expansion}" if expansion > 1 else "dense",
        )
    for budget, colour in value_colours(budgets).items():
        rows = [row for row in result["rows"] if row["budget"] == budget]
        right.plot(
            [row["total"] for row in rows],
            [row["loss"] for row in rows],
            "s-",
            ms=4,
            color=colour,
            label=f"{budget:.2g} FLOPs",
        )
    predicted = result["predicted"]
    total = runs.measure_model(predicted["expansion"], predicted["width"])["total"]
    right.vlines(total, *predicted["interval90"], color=INK, lw=1.5)
    right.plot(total, predicted["loss"], "D", ms=5, mfc="white", color=INK, label="predicted before")
    right.plot(total, predicted["measured"], "*", ms=11, color=ACCENT, label=f"{predicted['budget']:.2g} FLOPs, after")
    for ax in (left, right):
        set_log_axis(ax)
        add_axes_legend(fig, ax, fontsize=7)
    left.set(xlabel="active parameters", ylabel="validation loss (nats/byte)", title=f"{most:.2g} active FLOPs")
    right.set(xlabel="all parameters", title="the best width of each budget")
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    gain = lambda row: f"{row['mean']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})" if "mean" in row else ""  # noqa: E731
    rows = [
        [f"{row['budget']:.2g}", str(row["expansion"]), f"{row['width']}{' (edge)' if row['edge'] else ''}",
         f"{row['active']:,.0f}", f"{row['total']:,.0f}", f"{row['loss']:.4f}", gain(row)] for row in result["rows"]
    ]  # fmt: skip
    arms = [
        [arm, f"{each['loss']:.4f}", f"{each['imbalance']:.2f}", f"{each['entropy']:.3f}", f"{each['idle']:.1f}"]
        for arm, each in result["balance"]["arms"].items()
    ]
    params = ", ".join(f"{name} {value:.4g}" for name, value in result["predicted"]["params"].items())
    return [
        f"Means of {result['seeds']} seeds at the best width of each budget; differences from the dense model, paired "
        "by seed, with 95 % intervals.", "",
        *markdown_table(("FLOPs", "experts x", "width", "active", "all", "loss", "less dense (nats)"), rows), "",
        f"Joint law: {params}. Fitted again without some cells, of those:", "",
        *markdown_table(("cells left out", "mean error", "worst", "alpha"), map(_held_cells, result["held"].items())),
        "",
        f"Balance at x{runs.BALANCED_EXPANSION}, d_model {runs.BALANCED_WIDTH}, {max(result['budgets']):.2g} FLOPs; "
        f"load: means of the last {runs.LAST_LINES} logged steps, of the worse of two blocks.", "",
        *markdown_table(("balance", "loss", "largest load / mean", "entropy / that of even", "idle experts"), arms), "",
        f"Ladder: {runs.RULE.text()}.",
    ]  # fmt: skip


def _held_cells(row: tuple[str, Mapping[str, Any]]) -> list[str]:
    name, held = row
    if "reason" in held:
        return [name, f"not determined: {held['reason']}", "", ""]
    return [name, *(f"{held[key]:+.1%}" for key in ("mean", "worst")), f"{held['alpha']:.2f}"]


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("experts", __doc__, argv, measure, plot_losses, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
