"""Figures of whatever was logged: one panel a metric or family of metrics, over the steps. Rows in, matplotlib Figure out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.report.figures.style import INK, add_legend, set_log_axis, styled, thin_points, value_colours

COLUMNS = 3
WIDE = 20.0  # largest / smallest value beyond which the axis of a panel is logarithmic
DASHES: tuple[Any, ...] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
)  # a name each, where runs have the colours
MOST_NAMES = 8  # of a family that the legend of its panel lists; of more, every so many
KEYS = ("run", "step")  # of a row; the others are metrics


def group_names(names: Iterable[str]) -> dict[str, list[str]]:
    """`mine/a`, `lr`, `mine/b` -> {"mine": ["mine/a", "mine/b"], "lr": ["lr"]}: a panel each, in order of first appearance."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition("/")[0], []).append(name)
    return groups


def split_constant(rows: Sequence[dict]) -> tuple[dict[str, list[str]], dict[str, float | None]]:
    """({panel: metrics} to draw, {metric: value} of panels in which nothing ever changed; None: never a finite number).

    rows: `run`, `step` and any metrics; one that is absent or None was not logged at that step.
    """
    names = dict.fromkeys(key for row in rows for key in row if key not in KEYS)
    values = {name: {row[name] for row in rows if _is_finite(row.get(name))} for name in names}
    drawn: dict[str, list[str]] = {}
    constant: dict[str, float | None] = {}
    for panel, members in group_names(names).items():
        if any(len(values[name]) > 1 for name in members):
            drawn[panel] = members
        else:
            constant |= {name: next(iter(values[name]), None) for name in members}
    return drawn, constant


def _is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


@styled
def metric_panels(rows: Sequence[dict], panels: Mapping[str, Sequence[str]], colour_of: Mapping[str, Any]) -> Figure:
    """The metrics over the steps, unsmoothed: a panel a family, a line a name and run.

    rows: `run`, `step` and metrics; panels: {title: metrics}. `colour_of` maps each run to the value that colours its lines; a
    single run's lines are coloured by name.
    """
    columns = min(COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    fig = Figure(figsize=(3.3 * columns, 2.5 * lines), layout="constrained")
    axes = fig.subplots(lines, columns, squeeze=False)
    runs = {run: [row for row in rows if row["run"] == run] for run in dict.fromkeys(row["run"] for row in rows)}
    shade = value_colours(colour_of[run] for run in runs)
    for ax, (title, names) in zip(axes.flat, panels.items(), strict=False):
        _panel(ax, runs, names, {run: shade[colour_of[run]] for run in runs})
        ax.set(xlabel="step", title=title)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    if len(runs) > 1:
        add_legend(fig, axes[0, 0], shade, "")
    return fig


def _panel(ax: Axes, runs: Mapping[str, list[dict]], names: Sequence[str], colour_of_run: Mapping[str, str]) -> None:
    by_name, drawn, handles = value_colours(range(len(names))), [], []
    for index, name in enumerate(names):
        look: dict[str, Any] = {"color": by_name[index]}
        for run, rows in runs.items():
            if len(runs) > 1:
                look = {"color": colour_of_run[run], "ls": DASHES[index % len(DASHES)], "lw": 1.0}
            known = [row for row in rows if _is_finite(row.get(name))]
            if known:
                values = [row[name] for row in known]
                ax.plot(*thin_points([row["step"] for row in known], values), **look)
                drawn += values
        label = name.partition("/")[2] or name
        handles.append(Line2D([], [], **(look if len(runs) == 1 else look | {"color": INK}), label=label))
    if drawn and min(drawn) > 0 and max(drawn) / min(drawn) > WIDE:
        set_log_axis(ax, "y")
    if len(names) > 1:
        shown = np.unique(np.linspace(0, len(names) - 1, min(MOST_NAMES, len(names))).round().astype(int))
        ax.legend(handles=[handles[index] for index in shown], fontsize=7, loc="best")
