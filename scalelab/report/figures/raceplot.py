"""Draw optimizers side by side: loss curves, and final losses with intervals beside the tuning trials."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scalelab.report.figures.style import (
    ACCENT,
    INK,
    LOSS_LABEL,
    MUTED,
    make_figure,
    set_log_axis,
    styled,
    value_colours,
)

COLOURED_CURVES = 6  # most curves with a colour and a name; the rest are grey
SMOOTHED_STEPS = 20
HEADROOM_FACTOR = 1.5  # height above the best curve, in falls of that curve, up to which curves are shown


@styled
def plot_race(rows: Sequence[dict[str, Any]]) -> Figure:
    """rows, best first: `name`, `curves` [seeds][(step, loss)], `losses` [seeds], `tuned` [trials] (inf: diverged).

    `interval`: (low, high) of the final loss, which is the losses' mean.
    """
    shown = [row for row in rows if np.isfinite(row["losses"]).all()]
    fig, (left, right) = make_figure(11.5, 0.3 * len(rows) + 2.6, 2)
    colours = value_colours([row["name"] for row in shown[:COLOURED_CURVES]])
    for row in reversed(shown):
        steps = [step for step, _ in row["curves"][0]]
        losses = np.array([[loss for _, loss in curve] for curve in row["curves"]])
        colour = colours.get(row["name"], "#d5d8dd")
        left.plot(steps, losses.mean(0), color=colour, label=row["name"] if row["name"] in colours else None)
        if row["name"] in colours:
            left.fill_between(steps, losses.min(0), losses.max(0), color=colour, alpha=0.15, lw=0)
    lowest = min(min(row["losses"]) for row in shown)
    highest = max(curve[0][1] for row in shown for curve in row["curves"])
    left.set(
        xlabel="step",
        ylabel=LOSS_LABEL,
        title="chosen values of each, mean and range over fresh seeds",
        ylim=(lowest - 0.02, highest),
    )
    left.legend(reverse=True)
    for place, row in enumerate(rows):
        tuned = [loss for loss in row["tuned"] if np.isfinite(loss)]
        right.plot(tuned, [place] * len(tuned), ".", color=MUTED, ms=3, alpha=0.7)
        if tuned:
            right.plot(min(tuned), place, "o", color=ACCENT, mfc="none", ms=5)
        if np.isfinite(row["losses"]).all():
            mean, ends = np.mean(row["losses"]), np.array(row["interval"])
            right.errorbar(mean, place, xerr=np.abs(ends - mean)[:, None], fmt="D", color=INK, ms=4, capsize=3)
        else:
            right.text(
                0.98, place, "diverged", color=ACCENT, ha="right", va="center", transform=right.get_yaxis_transform()
            )
    right.set_yticks(range(len(rows)), [row["name"] for row in rows])
    right.set_xlim(lowest - 0.03, lowest + HEADROOM_FACTOR * max(highest - lowest, 0.1))
    right.set(xlabel=LOSS_LABEL, title="fresh seeds (diamond, 90 %), best tuned (ring), trials (dots)")
    right.invert_yaxis()
    return fig


@styled
def plot_arms(arms: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Draw arms {name: training losses [seeds][steps]}: left every seed, right running means of the seeds' median."""
    fig, (whole, close) = make_figure(9.0, 3.6, 2)
    colours = value_colours(arms, "name")
    lowest = np.inf
    for name, curves in arms.items():
        losses = np.array([curve[: min(map(len, curves))] for curve in curves], float)
        losses[~np.isfinite(losses)] = np.nan
        whole.plot(range(1, losses.shape[1] + 1), losses.T, color=colours[name], lw=0.6, alpha=0.8)
        smooth = np.median(
            [np.convolve(row, np.full(SMOOTHED_STEPS, 1 / SMOOTHED_STEPS), "valid") for row in losses], 0
        )
        steps = np.arange(len(smooth)) + SMOOTHED_STEPS
        close.plot(steps, smooth, color=colours[name], lw=1.6, label=name)
        lowest = min(lowest, float(np.nanmin(smooth)))
    set_log_axis(whole, "y")
    whole.set(xlabel="step", ylabel="training loss (nats/token)", title="every seed")
    title = f"median of seeds, mean of {SMOOTHED_STEPS} steps"
    close.set(xlabel="step", ylim=(lowest - 0.1, 2 * lowest), title=title)
    close.legend()
    return fig


@styled
def plot_replay(result: Mapping[str, Any]) -> Figure:
    """Draw the curves of `replay_window`: the original dark, cures in colour, others grey; the window shaded."""
    fig, ax = make_figure(7.0, 3.8)
    first, last = result["window"]
    start, works = result["origin"]["step"] + 1, {v["name"]: v["works"] for v in result["verdicts"]}
    named = [name for name, good in works.items() if good and name != "original"][:COLOURED_CURVES]
    colours = value_colours(named, "name")
    ax.axvspan(first - 0.5, last + 0.5, color=ACCENT, alpha=0.12, lw=0)
    for name, losses in result["curves"].items():
        losses = np.where(np.isfinite(np.array(losses, float)), losses, np.nan)
        colour = INK if name == "original" else colours.get(name, "#c9ccd2")
        label = name if name == "original" or name in colours else None
        ax.plot(np.arange(start, start + len(losses)), losses, color=colour, lw=1.0, label=label)
    if len(colours) < len(result["curves"]) - 1:
        ax.plot([], [], color="#c9ccd2", label="others")
    set_log_axis(ax, "y")
    ax.set(xlabel="step", ylabel="training loss (nats/token)")
    ax.legend()
    return fig
