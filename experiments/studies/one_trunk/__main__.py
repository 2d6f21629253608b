"""One trunk: a whole IsoFLOP study from one run a size and a short decay a budget, and why the decay lowers the loss.

    python -m experiments.studies.one_trunk [--workdir=DIR] [--quick] [--json[=PATH]]

Four sizes of the quickstart's family, three seeds. One arm trains each (size, budget) from step 0, with the learning
rate and warm-up of its own length. The other trains each size once at one constant rate, and branches a linear decay
of a fifth of the steps off for each budget (`scalelab train --branch-from`); the same trunks give a grid of equal
tokens at three sizes. Compared: exponents of the best size, the loss of each cell, FLOPs. Then decays to 0, 1/3 and 2/3
of three rates: the drop of the loss against the fall of the rate. Expected: equal losses and exponents for two thirds
of the FLOPs (Hägele et al. 2024), a drop in proportion to the fall (Tissue et al. 2024). Twelve CPU minutes; --quick:
two budgets and two seeds.

    scalelab study one_trunk --quick --workdir=runs/one_trunk
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.experiments.shared import find_runs, markdown_table, train_packs
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.one_trunk import compare, drop, figure, grid

SEEDS, QUICK_SEEDS = range(3), range(2)
WIDTHS = tuple(grid.SHORTEST)
EQUAL = 0.02  # nats, 1 % of the loss; seeds of one setting scatter by about 0.01 (results/curves.json)
LINEAR = (0.75, 1.25)  # of an exponent: nearer to 1 than to 1/2 or 3/2
LIMITS = (
    "models of 0.01 to 0.05 M parameters on bytes, budgets of 5e10 to 2e11 FLOPs: a factor of four, so that exponents "
    "are known badly. Both arms share seeds, and a trunk's branches share its noise. The rate of the independent runs "
    "comes from a rule, was not tuned for each cell, and falls with the 0.12th power of the steps; where the best rate "
    "depends on the length more strongly, one trunk costs more. Drops were measured at one size, one step, and for "
    "AdamW with a linear decay."
)


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study: both arms and the drops."""
    seeds, lrs = (QUICK_SEEDS, drop.LRS[1:]) if quick else (SEEDS, drop.LRS)
    budgets, tokens = grid.list_cells(WIDTHS, grid.DOUBLINGS[: 2 if quick else None])
    cells = sorted({*budgets, *tokens})
    arms = {"own": folder / "independent", "branch": folder / "branches"}
    trunks, drop_trunks = grid.make_trunks(cells, seeds), drop.make_trunks(lrs, seeds)
    train_packs(folder / "trunks", trunks)
    train_packs(folder / "drop_trunks", drop_trunks)
    branches = grid.make_branches(cells, trunks, find_runs(folder / "trunks"))
    drops = drop.make_branches(drop_trunks, find_runs(folder / "drop_trunks"), drop.FINAL_SHARES)
    train_packs(arms["branch"], branches)
    train_packs(folder / "drops", drops)
    train_packs(arms["own"], grid.make_independent(cells, seeds))
    losses = {arm: grid.read_losses(place, cells, seeds) for arm, place in arms.items()}
    spent = {arm: compare.trained_flops(place) for arm, place in (*arms.items(), ("trunk", folder / "trunks"))}
    rows = drop.read_drops(folder, lrs, drop.FINAL_SHARES, seeds)
    result = {
        "seeds": len(seeds), "cells": compare.list_differences(losses["branch"], losses["own"]),
        "overall": compare.mean_over_cells(losses["branch"], losses["own"]),
        "isoflop": {arm: compare.fit_exponent({cell: each[cell] for cell in budgets}) for arm, each in losses.items()},
        "slopes": {arm: compare.token_slopes({cell: each[cell] for cell in tokens}) for arm, each in losses.items()},
        "saved": 1 - (spent["branch"] + spent["trunk"]) / spent["own"], "planned_saving": grid.count_saved(cells),
        "saved_isoflop": grid.count_saved(budgets), "drops": rows, "drop_exponents": drop.fit_exponents(rows),
    }  # fmt: skip
    return result | {"checks": list_checks(result), "finding": describe_finding(result), "limits": LIMITS}


def list_checks(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Known values beside ours; an exponent of an arm without two minima inside its sizes is left out."""
    row, own, branch = outcome.compare_with, result["isoflop"]["own"], result["isoflop"]["branch"]
    known = result["slopes"]["own"]["mean"]
    tissue = "Tissue et al. 2024, eq. 1: linear in the fall"
    checks = (
        [
            row(
                own["a"],
                "independent runs, their 90 % interval",
                "one trunk: exponent of the best size",
                branch["a"],
                *own["interval"],
            )
        ]
        if own and branch
        else []
    )
    return [
        *checks,
        row(0, "Hägele et al. 2024: equal", "branch less independent run, mean over cells", result["overall"]["mean"],
            -EQUAL, EQUAL, "nats"),
        row(known["mean"], "independent runs, their 90 % interval", "one trunk: slope of log loss over log tokens",
            result["slopes"]["branch"]["mean"]["mean"], known["low"], known["high"]),
        row(result["planned_saving"], "closed form", "FLOPs saved, by the runs' records", result["saved"],
            result["planned_saving"] - 1e-3, result["planned_saving"] + 1e-3),
        row(1, tissue, "drop ~ fall^p, partial decays of one rate: p", result["drop_exponents"]["within"]["mean"],
            *LINEAR),
        row(1, tissue, "drop ~ fall^p, full decays of several rates: p", result["drop_exponents"]["across"]["mean"],
            *LINEAR),
    ]  # fmt: skip


def describe_finding(result: Mapping[str, Any]) -> str:
    """One sentence with the numbers."""
    own, branch = (result["isoflop"][arm] for arm in ("own", "branch"))
    exponents = "the best size has no exponent in one of the arms"
    if own and branch:
        low, high = own["interval"]
        exponents = f"the best size grows as C^{branch['a']:.2f} against C^{own['a']:.2f} ({low:.2f} to {high:.2f})"
    clear = sum(abs(each["mean"]) > 2 * each["error"] for each in result["cells"])
    overall, within, across = (result["overall"], *(result["drop_exponents"][key] for key in ("within", "across")))
    return (
        f"One trunk a size and a decay a cell save {result['saved']:.0%} of the FLOPs ({result['saved_isoflop']:.0%} "
        f"of the IsoFLOP grid alone); {exponents}; losses differ by {overall['mean']:+.4f} ± "
        f"{overall['error']:.4f} nats in the mean, and in {clear} of {len(result['cells'])} cells by more than two "
        f"standard errors; the drop of a decay goes as the fall of the rate to the power "
        f"{within['mean']:.2f} ± {within['error']:.2f} for partial decays, {across['mean']:.2f} ± "
        f"{across['error']:.2f} between rates."
    )


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    cells = [(str(each["width"]), str(each["steps"]), f"{each['flops']:.2e}", f"{each['branch']:.4f}",
              f"{each['own']:.4f}", _with_error(each)) for each in result["cells"]]  # fmt: skip
    minima = [
        (name, f"{profile['budget']:.2e}", "edge" if profile["edge"] else f"{profile['N']:,.0f}")
        for name, arm in (("independent", "own"), ("one trunk", "branch"))
        if result["isoflop"][arm]
        for profile in result["isoflop"][arm]["budgets"]
    ]
    slopes = [
        (width, *(_with_error(result["slopes"][arm][width]) for arm in ("own", "branch")))
        for width in result["slopes"]["own"]
    ]
    drops = [
        (
            f"{row['lr']:g}",
            f"{row['fall']:.5f}",
            f"{np.mean(row['drops']):.4f} ± {np.std(row['drops'], ddof=1) / len(row['drops']) ** 0.5:.4f}",
        )
        for row in result["drops"]
    ]
    return [
        f"Final validation losses (nats), means of {result['seeds']} seeds; differences by seed, ± standard error:", "",
        *markdown_table(("width", "steps", "FLOPs", "one trunk", "independent", "difference"), cells), "",
        "Best size of each budget:", "", *markdown_table(("arm", "FLOPs", "parameters"), minima), "",
        "Slope of log loss over log tokens, at equal tokens:", "",
        *markdown_table(("width", "independent", "one trunk"), slopes), "",
        f"Decays of {drop.STEPS // grid.DECAY} steps at width {drop.WIDTH}, from step {grid.branch_step(drop.STEPS)}:",
        "", *markdown_table(("rate", "fall of the rate", "drop of the loss"), drops),
    ]  # fmt: skip


def _with_error(each: Mapping[str, float]) -> str:
    return f"{each['mean']:+.4f} ± {each['error']:.4f}"


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("one_trunk", __doc__, argv, measure, figure.plot_result, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
