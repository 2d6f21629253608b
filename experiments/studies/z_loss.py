"""Z-loss and attention's entropy: what a penalty on the output's softmax does to the softmax of attention.

    python -m experiments.studies.z_loss [--workdir=DIR] [--quick] [--json[=PATH]]

One block of width 32 is trained for 100 steps at a usual and at a far too high learning rate: plain, with a z-loss of
1e-4, with one a hundred times as strong, and with QK-norm. The z-loss is defined on the logits of the output (Chowdhery
et al. 2022, section 5), which attention does not pass through; some texts say that it prevents the collapse of
attention's entropy. What it holds is measured beside it: the mean log Z of the output. QK-norm bounds attention's own
logits (Dehghani et al. 2023) and shows what prevention would look like. About a minute; --quick: one seed.

    scalelab study z_loss --quick --workdir=runs/z_loss
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.experiments.shared import markdown_table, train_trials
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.stability_forecast import ladder
from scalelab.record import records
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, styled

WIDTH, STEPS = 32, 100
LRS = (4e-3, 0.256)
SEEDS, QUICK_SEEDS = (1, 2, 3), (1,)
STRONG = "z-loss-1e-2"
ARMS = {**ladder.ARMS, STRONG: (False, 1e-2)}  # QK-norm, z
STYLES = {ladder.PLAIN: (INK, "-"), ladder.Z_LOSS: (ACCENT, "-"), STRONG: (ACCENT, ":"), ladder.QK_NORM: (MUTED, "-")}


def make_trials(seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of all arms, rates and seeds."""
    trials = {}
    for arm, (qk_norm, z_loss) in ARMS.items():
        for lr in LRS:
            for seed in seeds:
                values = {"model.qk_norm": qk_norm, "train.z_loss": z_loss, "optim.peak_lr": lr, "train.seed": seed}
                changed = config_lib.override(ladder.base_config(WIDTH, STEPS), values)
                trials[ladder.run_name(arm, lr, seed)] = config_lib.resolve(changed)
    return trials


def read_runs(folder: pathlib.Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row a run: its curves of attention's entropy (nats, mean over layers) and of the output's mean log Z."""
    rows = []
    for arm in ARMS:
        for lr in LRS:
            for seed in seeds:
                lines = records.read_layers(folder / "runs" / ladder.run_name(arm, lr, seed))
                rows.append({
                    "arm": arm, "lr": lr, "seed": seed, "steps": [line["step"] for line in lines],
                    "entropy": [float(np.mean(line["attention_entropy"])) for line in lines],
                    "log_z": [line["logits/log_z"] for line in lines],
                })  # fmt: skip
    return rows


def prevented_share(rows: Sequence[Mapping[str, Any]], arm: str) -> list[float]:
    """The share of the plain runs' fall of entropy at the high rate that an arm prevents, by seed.

    An arm falls from what its run at the low rate has at the first measured step, when weights have hardly moved.
    """
    start = {(row["arm"], row["seed"]): row["entropy"][0] for row in rows if row["lr"] == LRS[0]}
    end = {(row["arm"], row["seed"]): row["entropy"][-1] for row in rows if row["lr"] == LRS[1]}
    fall = {run: start[run] - end[run] for run in end}
    return [1 - fall[arm, seed] / fall[ladder.PLAIN, seed] for name, seed in fall if name == arm]


def _last(rows: Sequence[Mapping[str, Any]], arm: str, lr: float, key: str) -> float:
    return float(np.mean([row[key][-1] for row in rows if (row["arm"], row["lr"]) == (arm, lr)]))


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    seeds = QUICK_SEEDS if quick else SEEDS
    train_trials(folder, make_trials(seeds))
    rows = read_runs(folder, seeds)
    shares = {arm: float(np.mean(prevented_share(rows, arm))) for arm in ARMS}
    log_z = {arm: _last(rows, arm, LRS[1], "log_z") for arm in (ladder.PLAIN, ladder.Z_LOSS, STRONG)}
    entropy = {arm: _last(rows, arm, LRS[1], "entropy") for arm in ARMS}
    start = float(np.mean([row["entropy"][0] for row in rows if (row["arm"], row["lr"]) == (ladder.PLAIN, LRS[0])]))
    source = "the output's softmax alone (Chowdhery et al. 2022): 0, where 1 is all of it"
    checks = [
        outcome.compare_with(1, "sign: below 1, what a z-loss is for (Chowdhery et al. 2022)",
                             "mean log Z of the output at the end, z-loss of 1e-2 over none",
                             log_z[STRONG] / log_z[ladder.PLAIN], 0, 1),
        *[outcome.compare_with(0, source, f"share of the fall of attention's entropy that a z-loss of {size} prevents",
                               shares[arm], -0.5, 0.5) for arm, size in ((ladder.Z_LOSS, "1e-4"), (STRONG, "1e-2"))],
        outcome.compare_with(0, "sign: above 0 (Dehghani et al. 2023)", "share of it that QK-norm prevents",
                             shares[ladder.QK_NORM], 0, 1e9),
    ]  # fmt: skip
    return {
        "seeds": len(seeds), "rows": rows, "checks": checks, "shares": shares,
        "finding": f"At a rate of {LRS[1]:g} attention's entropy falls from {start:.2f} to {entropy[ladder.PLAIN]:.3f} "
        f"nats without a z-loss, to {entropy[ladder.Z_LOSS]:.3f} with one of 1e-4, to {entropy[STRONG]:.3f} with 1e-2, "
        f"and to {entropy[ladder.QK_NORM]:.2f} under QK-norm; the output's mean log Z ends at "
        f"{log_z[ladder.PLAIN]:.2f}, {log_z[ladder.Z_LOSS]:.2f} and {log_z[STRONG]:.2f}.",
        "limits": "one block of width 32 and 100 steps. A z-loss may help attention in a larger model by way of what "
        "both share, the residual stream; what is shown is that it need not.",
    }  # fmt: skip


@styled
def plot_curves(result: Mapping[str, Any]) -> Figure:
    """Attention's entropy and the output's log Z over steps at the high rate, mean over seeds."""
    fig, axes = make_figure(8.2, 3.2, 2)
    for ax, key, label in zip(axes, ("entropy", "log_z"), ("attention's entropy (nats)", "mean log Z"), strict=True):
        for arm, (colour, line) in STYLES.items():
            rows = [row for row in result["rows"] if (row["arm"], row["lr"]) == (arm, LRS[1])]
            ax.plot(rows[0]["steps"], np.mean([row[key] for row in rows], axis=0), line, color=colour, label=arm)
        ax.set(xlabel="step", ylabel=label, title=f"learning rate {LRS[1]:g}")
        add_axes_legend(fig, ax)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    rows = result["rows"]
    cells = [
        [arm, f"{lr:g}", *(f"{_last(rows, arm, lr, key):.3f}" for key in ("entropy", "log_z"))]
        for lr in LRS
        for arm in ARMS
    ]
    return [f"Means of {result['seeds']} seeds at the last measured step.", "",
            *markdown_table(("arm", "learning rate", "attention's entropy, nats", "mean log Z"), cells)]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("z_loss", __doc__, argv, measure, plot_curves, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
