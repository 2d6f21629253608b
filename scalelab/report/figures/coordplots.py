"""Draw a coordinate check from the command's result: RMS over sizes, one line for each activation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalelab.report.figures.style import ACCENT, MUTED, make_figure, set_log_axis, styled, value_colours, write_figure

PANEL_LABELS = {"rms": "RMS", "change": "RMS of the change since initialisation"}


@styled
def plot_coordinate_check(result: Mapping[str, Any]) -> Figure:
    """Draw two panels for each axis of sizes: RMS of each activation, and of its change, at the last step, log-log.

    result: as `scalelab coordcheck --json` prints it. A grey line has slope 1, lines that grow are dashed.
    """
    checks = result["checks"]
    fig, axes = make_figure(4.6 * 2 * len(checks), 4.4, 2 * len(checks))
    for i, check in enumerate(checks):
        for ax, (key, label) in zip(axes[2 * i : 2 * i + 2], PANEL_LABELS.items(), strict=True):
            _panel(ax, check, key)
            ax.set(xlabel=check["axis"], ylabel=label)
        axes[2 * i].set_title(f"{result['name']}: {check['verdict']} with {check['axis']}")
        axes[2 * i + 1].legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), title="slope of the change", alignment="left"
        )
    return fig


def _panel(ax: Axes, check: Mapping[str, Any], key: str) -> None:
    sizes, rows = np.asarray(check["sizes"], float), check["rows"]
    colours = value_colours(range(len(rows)))
    for i, row in enumerate(rows):
        slope = row["slope" if key == "rms" else "change_slope"]
        style = "--" if row["verdict"] == "growing" else "-"
        ax.plot(
            sizes, row[key][-1], style, marker="o", ms=3.5, color=colours[i], label=f"{slope:+.2f} {row['activation']}"
        )
    values = np.concatenate([row[key][-1] for row in rows])
    low = values[values > 0].min()
    ax.plot(sizes[[0, -1]], low * 0.5 * sizes[[0, -1]] / sizes[0], ":", color=MUTED, lw=1)
    ax.annotate(
        "slope 1", (sizes[-1], low * 0.5 * sizes[-1] / sizes[0]), fontsize=7, color=MUTED, ha="right", va="bottom"
    )
    set_log_axis(ax)
    set_log_axis(ax, "y")
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    if any(row["verdict"] == "growing" for row in rows):
        ax.title.set_color(ACCENT)


def write_coordinate_check(path: str, result: Mapping[str, Any]) -> list[str]:
    """Write the figure to `path` (.pdf, with the CSV of its numbers beside it, or .png); returns what was written."""
    rows = [
        {"axis": check["axis"], "size": size, "activation": row["activation"], "step": step}
        | {key: row[key][step][i] for key in PANEL_LABELS}
        for check in result["checks"]
        for row in check["rows"]
        for step in range(len(row["rms"]))
        for i, size in enumerate(check["sizes"])
    ]
    return write_figure(path, plot_coordinate_check(result), rows)
