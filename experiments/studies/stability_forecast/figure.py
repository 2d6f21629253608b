"""The figure of the study: growth over width with its forecast, loss over the rate, and LR sensitivity."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalelab.experiments.studies.stability_forecast import ladder
from scalelab.report.figures.style import ACCENT, INK, add_axes_legend, make_figure, set_log_axis, styled, value_colours

STYLES = {ladder.PLAIN: (INK, "o-"), ladder.Z_LOSS: ("#2f6db3", "^:"), ladder.QK_NORM: ("#c07f1a", "s--")}
MARKERS = "ov^sD"


@styled
def plot_forecast(result: Mapping[str, Any]) -> Figure:
    """Three panels; filled markers are the runs of the ladder, crosses the wider ones."""
    fig, (growth, loss, sensitivity) = make_figure(11.4, 3.6, 3, (1.25, 1, 1))
    plot_growth(growth, result)
    add_axes_legend(fig, growth, fontsize=7, ncols=2, loc="upper left")
    for arm, (colour, style) in STYLES.items():
        means = [_mean_loss(result["rows"], arm, result["widths"][-1], lr) for lr in ladder.LRS]
        loss.plot(ladder.LRS, means, style, ms=4, color=colour, label=arm)
        values = np.array(result["sensitivity"][arm])
        sensitivity.errorbar(
            result["widths"], values[:, 0], values[:, 1], fmt=style, ms=4, capsize=2, color=colour, label=arm
        )
    set_log_axis(loss)
    loss.set(xlabel="learning rate", ylabel="final loss (nats/token)", title=f"width {result['widths'][-1]}")
    sensitivity.set_xscale("log", base=2)
    sensitivity.set_xticks(result["widths"], [str(width) for width in result["widths"]])
    sensitivity.minorticks_off()
    sensitivity.set(xlabel="width", ylabel="LR sensitivity (nats)", title="sensitivity")
    for ax in (loss, sensitivity):
        add_axes_legend(fig, ax)
    return fig


def plot_growth(ax: Axes, result: Mapping[str, Any]) -> None:
    """Largest attention logits of the plain model over width, a line a rate, and the forecast of the wider runs."""
    colours = value_colours(ladder.LRS)
    for marker, one in zip(MARKERS, result["scored"], strict=True):
        lr, colour = one["lr"], colours[one["lr"]]
        rows = [row for row in result["rows"] if row["arm"] == ladder.PLAIN and row["lr"] == lr]
        points = np.array([row["width"] for row in rows]), np.array([row["attention"] for row in rows])
        ax.plot(*points, marker, ms=3.5, color=colour, label=f"rate {lr:g}")
        ax.plot(*_curve(*points, result["wider"]), lw=0.9, color=colour)
        width = result["wider"]
        ax.errorbar(
            [width],
            [one["value"]],
            [[one["value"] - one["low"]], [one["high"] - one["value"]]],
            fmt="none",
            capsize=4,
            color=colour,
        )
        ax.plot([1.06 * width] * len(one["measured"]), one["measured"], "x", ms=5, color=ACCENT)
    set_log_axis(ax, "y")
    ax.set_xscale("log", base=2)
    widths = [*result["widths"], result["wider"]]
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.minorticks_off()
    ax.set(xlabel="width (bars: forecast, crosses: measured)", ylabel="largest attention logit", title="no QK-norm")


def _curve(widths: np.ndarray, values: np.ndarray, wider: int) -> tuple[np.ndarray, np.ndarray]:
    at = np.geomspace(widths.min(), wider, 60)
    return at, 2 ** np.polyval(np.polyfit(np.log2(widths), np.log2(values), ladder.DEGREE), np.log2(at))


def _mean_loss(rows: Sequence[Mapping[str, Any]], arm: str, width: int, lr: float) -> float:
    losses = [row["loss"] for row in rows if (row["arm"], row["width"], row["lr"]) == (arm, width, lr)]
    return float(np.mean([np.nan if loss is None else loss for loss in losses]))
