"""The figure of the study: a map an arm, and the embedding's norm over time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalelab.report.figures.style import ACCENT, INK, add_axes_legend, figure_title, make_figure, styled


@styled
def plot_maps(result: Mapping[str, Any]) -> Figure:
    """Losses over rate x decay, the best decay of each rate ringed, and the norm of the embedding."""
    fig, axes = make_figure(12.4, 3.6, 4, (1, 1, 1, 0.9))
    for ax, one in zip(axes, result["maps"], strict=False):
        plot_map(ax, one)
    for side, style in (("off", "--"), ("on", "-")):
        one = result["embedding"]["sides"][side]
        label = "decays" if side == "on" else "does not decay"
        axes[3].plot(one["steps"], one["norms"], style, color=INK if side == "on" else ACCENT, label=label)
    axes[3].set(xlabel="step", ylabel="norm", title="the embedding")
    axes[3].set_ylim(bottom=0)
    add_axes_legend(fig, axes[3])
    title = "loss above the lowest of each map, in hundredths of a nat; ring: the best decay of a rate"
    fig.suptitle(figure_title(title), x=0.01, ha="left", fontsize=9)
    return fig


def plot_map(ax: Axes, one: Mapping[str, Any]) -> None:
    """One map: shade and number are the loss above the lowest of the map, in hundredths of a nat."""
    excess = 100 * (np.array(one["means"])[:, 1:].T - np.min(one["means"]))
    ax.pcolormesh(np.sqrt(np.clip(excess, 0, None)), cmap="Greys", vmin=0, vmax=12)
    ax.grid(visible=False)
    for (row, column), value in np.ndenumerate(excess):
        colour = "white" if value > 50 else INK
        ax.text(column + 0.06, row + 0.94, f"{value:.0f}", ha="left", va="top", fontsize=7, color=colour)
    decays, columns = np.log2(one["decays"]), np.arange(len(one["lrs"]))
    at = np.interp(np.log2(one["best"]), decays, np.arange(len(decays))) + 0.5
    inside = np.array(one["inside"])
    ax.plot(columns[inside] + 0.5, at[inside], "o-", ms=9, mfc="none", mew=1.6, lw=0.9, color=ACCENT)
    ax.set_xticks(columns + 0.5, [f"{lr:g}" for lr in one["lrs"]])
    ax.set_yticks(np.arange(len(decays)) + 0.5, [f"{decay:g}" for decay in one["decays"]])
    ax.set(xlabel="learning rate", ylabel="decay", title=one["arm"])
