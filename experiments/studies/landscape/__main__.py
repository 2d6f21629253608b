"""Loss landscapes: barriers between runs, none between branches of one run, and the average of checkpoints.

    python -m experiments.studies.landscape [--workdir=DIR] [--quick] [--json[=PATH]]

Small transformers are trained with three seeds at a constant learning rate. On the straight line between two of them
the loss has a barrier; between two runs that start from one run's checkpoint, in another order of batches, the barrier
shrinks the later they part (Frankle et al. 2020). The mean of the last checkpoints and the average of the weights (EMA)
lie lower than the last checkpoint. And a slice in two random directions, each filter scaled as the weights' own (Li et
al. 2018). Four minutes; --quick: shorter runs, two seeds.

    scalelab study landscape --quick --workdir=runs/landscape
"""

import itertools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.cli.parser import print_status
from scalelab.configs import tiny
from scalelab.experiments.shared import markdown_table, train_trials
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.landscape import paths
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, styled
from scalelab.train.single import load_run_dataset

STEPS, QUICK_STEPS = 800, 320
SEEDS, QUICK_SEEDS = 3, 2
EARLY = 20  # the first checkpoint, from which branches part
AVERAGED = 4  # last checkpoints
EMA = 0.97  # a step: over some 33 steps
SHARES = np.linspace(0, 1, 21)
BEYOND = np.linspace(-0.5, 2.0, 26)  # through the last checkpoint (0) and the average (1)
SLICE = np.linspace(-1, 1, 17)


def make_runs(steps: int, seeds: int) -> dict[str, ConfigDict]:
    """{name: config} of the runs from scratch, which keep a checkpoint every EARLY steps."""
    return {f"seed{seed}": _config(steps, seed, {"checkpoint.keep_every": EARLY}) for seed in range(seeds)}


def make_branches(folder: pathlib.Path, steps: int, seeds: int) -> dict[str, ConfigDict]:
    """{name: config} of two runs from each run's early and middle checkpoint, in two other orders of batches."""
    return {
        f"seed{seed}at{step}order{order}": _config(
            steps // 2, 100 + 10 * seed + order, {"train.init_from": f"{folder / 'runs' / f'seed{seed}'}@{step}"}
        )
        for seed, step, order in itertools.product(range(seeds), (EARLY, steps // 2), range(2))
    }


def _config(steps: int, seed: int, more: Mapping[str, Any]) -> ConfigDict:
    values = {
        "model.d_model": 32, "model.n_layers": 2, "model.n_heads": 2, "model.seq_len": 64, "train.global_batch": 8,
        "train.steps": steps, "train.seed": seed, "train.ema": EMA, "schedule.name": "constant",
        "schedule.warmup_steps": 20, "optim.peak_lr": 1e-2, "checkpoint.every_steps": EARLY, "eval.every_steps": steps,
    }  # fmt: skip
    return config_lib.resolve(config_lib.override(tiny.get_config(), values | dict(more)))


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    steps, seeds = (QUICK_STEPS, QUICK_SEEDS) if quick else (STEPS, SEEDS)
    runs = make_runs(steps, seeds)
    train_trials(folder / "scratch", runs)
    train_trials(folder / "branches", make_branches(folder / "scratch", steps, seeds))
    config = runs["seed0"]
    tokens = paths.validation_tokens(load_run_dataset(config), config.model.seq_len)
    scratch = [folder / "scratch" / "runs" / name for name in runs]
    lines = {"from scratch": [_line(a, b, tokens) for a, b in itertools.combinations(scratch, 2)]}
    for step, name in ((EARLY, f"parted at step {EARLY}"), (steps // 2, f"parted at step {steps // 2}")):
        pairs = [
            [folder / "branches" / "runs" / f"seed{seed}at{step}order{i}" for i in range(2)] for seed in range(seeds)
        ]
        lines[name] = [_line(*pair, tokens) for pair in pairs]
    barriers = {name: [paths.find_barrier(np.array(each), SHARES) for each in rows] for name, rows in lines.items()}
    print_status("barriers: " + ", ".join(f"{name} {np.mean(each):.3f}" for name, each in barriers.items()))
    averages = [_averages(run, tokens) for run in scratch]
    return {
        "steps": steps, "seeds": seeds, "lines": lines, "barriers": barriers, "averages": averages,
        "slice": _slice(scratch[0], tokens), "checks": list_checks(barriers, averages),
        "finding": describe_finding(barriers, averages),
        "limits": "models of 40,000 parameters after hundreds of steps at a constant rate. A slice shows two of as "
        "many directions as there are parameters, and a straight line is not the only way between two models: barriers "
        "shrink if hidden units are first put in the same order, which is not done here.",
    }  # fmt: skip


def _line(first: pathlib.Path, last: pathlib.Path, tokens: np.ndarray) -> list[float]:
    return paths.line_losses(paths.load(first), paths.load(last), tokens, SHARES).tolist()


def _averages(run: pathlib.Path, tokens: np.ndarray) -> dict[str, Any]:
    """Losses of the last checkpoint and of both averages, and along the line from the last through the mean."""
    last, mean, ema = paths.load(run), paths.load(run, last=AVERAGED), paths.load(run, ema=True)
    line = paths.line_losses(last, mean, tokens, BEYOND)
    losses = {
        name: float(paths.line_losses(last, each, tokens, np.array([1.0]))[0])
        for name, each in (("last", last), ("mean", mean), ("ema", ema))
    }
    return losses | {"line": line.tolist()}


def _slice(run: pathlib.Path, tokens: np.ndarray) -> list[list[float]]:
    weights = paths.load(run)
    static = config_lib.static(weights.config)
    directions = [paths.draw_direction(static, weights.params, seed) for seed in (1, 2)]
    places = jnp.asarray([(x, y) for y in SLICE for x in SLICE], jnp.float32)
    return (
        np.asarray(paths.losses_at(static, weights.params, directions, places, tokens)).reshape(len(SLICE), -1).tolist()
    )


def describe_finding(barriers: Mapping[str, Sequence[float]], averages: Sequence[Mapping[str, Any]]) -> str:
    """The sentence of the result."""
    parts = ", ".join(f"{np.mean(each):.2f} nats {name}" for name, each in barriers.items())
    gains = {key: _mean_and_error([row["last"] - row[key] for row in averages]) for key in ("mean", "ema")}
    return (
        f"Barriers on the line between two runs: {parts}. The mean of {AVERAGED} checkpoints lies "
        f"{gains['mean'][0]:.3f} ± {gains['mean'][1]:.3f} nats below the last one, the EMA {gains['ema'][0]:.3f} ± "
        f"{gains['ema'][1]:.3f}."
    )


def list_checks(barriers: Mapping[str, Sequence[float]], averages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Barriers and gains beside what the papers found."""
    scratch, early, late = (float(np.mean(each)) for each in barriers.values())
    gain, _ = _mean_and_error([row["last"] - row["mean"] for row in averages])
    frankle = "Frankle et al. 2020"
    return [
        outcome.compare_with(0, f"above 0: {frankle}", "barrier between runs from scratch", scratch, 0.1, 10, "nats"),
        outcome.compare_with(0, f"falls with later parting: {frankle}", "barrier, parted late over parted early",
                             late / early, 0, 1),
        outcome.compare_with(0, f"0: {frankle}", "barrier between runs that part late", late, -0.02, 0.05, "nats"),
        outcome.compare_with(0, "above 0: Izmailov et al. 2018", f"last checkpoint above the mean of {AVERAGED}",
                             gain, 1e-3, 1, "nats"),
    ]  # fmt: skip


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)


@styled
def plot_landscape(result: Mapping[str, Any]) -> Figure:
    """Lines between runs, the line through the mean of checkpoints, and the slice."""
    fig, (left, middle, right) = make_figure(10.2, 3.3, 3)
    for (name, rows), (style, colour) in zip(
        result["lines"].items(), (("-", ACCENT), ("--", INK), (":", "#2f6db3")), strict=True
    ):
        for i, row in enumerate(rows):
            left.plot(SHARES, row, style, color=colour, lw=1.2, label=None if i else name)
    left.set(xlabel="from one run to the other", ylabel="validation loss (nats/token)", title="between two runs")
    add_axes_legend(fig, left)
    for i, row in enumerate(result["averages"]):
        middle.plot(BEYOND, row["line"], "-", color=INK, lw=1, label=None if i else "line")
        middle.plot(
            [0, 1], [row["last"], row["mean"]], "o", ms=4, color=ACCENT, mfc="none", label=None if i else "ends"
        )
        middle.axhline(row["ema"], color=MUTED, lw=0.7, ls=":", label=None if i else "EMA")
    middle.set(xlabel=f"from the last checkpoint (0) to the mean of {AVERAGED} (1)", title="averaging")
    add_axes_legend(fig, middle)
    heights = np.array(result["slice"])
    levels = heights.min() + np.geomspace(0.02, np.ptp(heights), 12)
    contours = right.contour(SLICE, SLICE, heights, levels, colors=MUTED, linewidths=0.8)
    right.clabel(contours, levels[3::3], fmt="%.2f", fontsize=7)
    right.plot(0, 0, "x", color=ACCENT)
    right.set(xlabel="first direction", ylabel="second direction", title="a slice (nats/token)")
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    barriers = [[name, ", ".join(f"{value:.3f}" for value in each)] for name, each in result["barriers"].items()]
    averages = [
        [str(i), *(f"{row[key]:.4f}" for key in ("last", "mean", "ema"))] for i, row in enumerate(result["averages"])
    ]
    return [
        f"{result['seeds']} seeds of {result['steps']} steps; branches of half as many.",
        "",
        *markdown_table(("pairs", "barriers (nats/token)"), barriers),
        "",
        *markdown_table(
            ("seed", "last checkpoint", f"mean of {AVERAGED}, {EARLY} steps apart", f"EMA {EMA}"), averages
        ),
    ]


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("landscape", __doc__, argv, measure, plot_landscape, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
