"""The figure of the study: steps against tokens, the noise scale over the run, and the best rate by batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalelab.experiments.studies.critical_batch import transformer
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, set_log_axis, styled


@styled
def plot_critical_batch(result: Mapping[str, Any]) -> Figure:
    """Three panels: hyperbola, noise scale, learning rates."""
    fig, axes = make_figure(10.8, 3.6, 3)
    plot_hyperbola(axes[0], result)
    plot_noise(axes[1], result)
    plot_rates(axes[2], result)
    for ax in axes:
        add_axes_legend(fig, ax)
    return fig


def plot_hyperbola(ax: Axes, result: Mapping[str, Any]) -> None:
    """Steps over sequences to the target, with a point a batch and the fit."""
    fit, races = result["fit"], result["races"]
    batches = np.geomspace(races[0]["batch"] / 2, 2 * races[-1]["batch"], 100)
    steps = fit["steps"] * (1 + fit["critical"] / batches)
    ax.plot(steps * batches, steps, "--", color=MUTED, label="hyperbola, fitted")
    x, y = [one["steps"] * one["batch"] for one in races], [one["steps"] for one in races]
    ax.plot(x, y, "o", color=INK, label="best rate of each batch")
    for one, at, count in zip(races, x, y, strict=True):
        ax.annotate(str(one["batch"]), (at, count), xytext=(5, 3), textcoords="offset points", fontsize=7.5)
    set_log_axis(ax)
    set_log_axis(ax, "y")
    ax.set(xlabel="sequences to the target", ylabel="steps to the target", title="the price of a batch")


def plot_noise(ax: Axes, result: Mapping[str, Any]) -> None:
    """The noise scale over the steps of the long run, with intervals, beside the critical batch."""
    rows = result["noise"]["long"]
    styles = {"simple": (INK, "o-", 1.0, "noise scale"), "adam": (ACCENT, "s--", 1.06, "in Adam's coordinates")}
    for kind, (colour, style, shift, label) in styles.items():
        for seed in sorted({row["seed"] for row in rows}):
            chosen = [row for row in rows if row["seed"] == seed]
            steps = [row["step"] * shift for row in chosen]
            scales, low, high = (np.array([row[kind][key] for row in chosen]) for key in ("scale", "low", "high"))
            top = np.where(np.isfinite(high), high, 10 * scales)
            bars = np.maximum([scales - low, top - scales], 0)
            ax.errorbar(
                steps,
                scales,
                bars,
                fmt=style,
                ms=3.5,
                lw=1,
                elinewidth=0.8,
                color=colour,
                label=label if seed == 0 else None,
            )
    ax.axhline(result["fit"]["critical"], ls=":", color=MUTED, label=f"B_crit to {transformer.TARGET} nats")
    set_log_axis(ax)
    set_log_axis(ax, "y")
    ax.set(xlabel="step", ylabel="sequences", title=f"a run of batch {transformer.LONG['batch']}")


def plot_rates(ax: Axes, result: Mapping[str, Any]) -> None:
    """Best rates over the batch as shares of that of the largest, with both rules below the critical batch."""
    toy, races = result["quadratic"], result["races"]
    curves = {
        "SGD, quadratic": (toy["rows"], toy["fit"]["critical"], 1.0, INK, "o", "-"),
        "Adam, transformer": (races, result["fit"]["critical"], 0.5, ACCENT, "s", "--"),
    }
    for label, (rows, critical, power, colour, marker, line) in curves.items():
        batches, rates = (np.array([row[key] for row in rows], float) for key in ("batch", "rate"))
        ax.plot(batches, rates / rates.max(), marker, ms=4, color=colour, label=label)
        n = max(2, np.sum(batches <= critical))
        level = np.exp(np.mean(np.log(rates / rates.max() / batches**power)[:n]))
        ends = np.array([batches[0], critical])
        ax.plot(ends, level * ends**power, line, lw=1, color=colour, label=f"B^{power:g}, up to B_crit")
    set_log_axis(ax)
    set_log_axis(ax, "y")
    ax.set(xlabel="batch", ylabel="best rate / largest", title="the best learning rate")
