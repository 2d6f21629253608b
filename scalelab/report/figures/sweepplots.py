"""Draw a sweep from its rows: the final loss of every trial over the swept values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.report.figures.style import (
    ACCENT,
    INK,
    LOSS_LABEL,
    add_axes_legend,
    figure_title,
    key_colours,
    make_figure,
    set_log_axis,
    styled,
)
from scalelab.report.tables import format_short
from scalelab.sweep.answer.settings import SEED_KEY, SweptSetting, find_best, group_by_setting, is_final

LEGEND_STYLE: dict[str, Any] = dict(fontsize=7, title_fontsize=7, frameon=True, framealpha=0.8, edgecolor="none")


@styled
def plot_sweep(
    rows: Sequence[dict], swept: Sequence[str], floor: float | None = None, title: str = "", ring: bool = True
) -> Figure:
    """Draw final validation loss over each swept value (at most 4, without seeds); diverged runs on the top edge.

    rows: `run`, `val_loss`, `status` (only `done` counts) and every name in `swept`. With `ring` the best setting
    has one, at its mean over seeds.
    """
    best = find_best(group_by_setting(rows, swept)) if ring else None
    panels = [name for name in swept if name != SEED_KEY][:4] or ["run"]  # seeds repeat a trial: they get no axis
    fig, axes = make_figure(max(5.4, 3.5 * len(panels)), 3.6, len(panels))
    for ax, name in zip(np.atleast_1d(axes), panels, strict=True):
        other = next((o for o in swept if o != name), None) if len(swept) == 2 else None
        _panel(ax, rows, name, other, best)
        handles = _other_values(rows, other) if other else []
        if floor is not None:
            handles.append(ax.axhline(floor, color=INK, ls=":", lw=1.2, label=f"entropy rate: {floor:.4g}"))
        if handles:
            add_axes_legend(fig, ax, handles=handles, title=other, **LEGEND_STYLE)
        ax.set(xlabel=name, ylabel=LOSS_LABEL)
    if figure_title(title):
        fig.suptitle(title, x=0.01, ha="left", fontsize=10, weight="bold")
    return fig


def _other_values(rows: Sequence[dict], other: str) -> list[Line2D]:
    colours = key_colours(other, (row.get(other) for row in rows))
    return [
        Line2D([], [], color=c, marker="o", ms=5, label=format_short(v) if _is_number(v) else str(v))
        for v, c in colours.items()
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _panel(ax: Axes, rows: Sequence[dict], name: str, other: str | None, best: SweptSetting | None) -> None:
    """Draw the loss over one swept value; if two were swept, the other one colours and joins the points."""
    values: list[Any] = sorted(
        {row.get(name) for row in rows}, key=lambda v: (not _is_number(v), v if _is_number(v) else str(v))
    )
    numeric = all(map(_is_number, values))
    at: dict[Any, float] = {value: float(value if numeric else rank) for rank, value in enumerate(values)}
    colours = key_colours(other, (row.get(other) if other else "" for row in rows))
    good = [row for row in rows if is_final(row)]
    for group, colour in colours.items():
        points = sorted((at[r.get(name)], r["val_loss"]) for r in good if (r.get(other) if other else "") == group)
        if points:
            joined = (
                "-" if len({x for x, _ in points}) == len(points) > 1 else ""
            )  # with one loss for each value, a curve
            ax.plot(
                *zip(*points, strict=True), marker="o", ls=joined, lw=0.9, ms=5.5, mec="white", mew=0.5, color=colour
            )
    lost = [at[row.get(name)] for row in rows if row not in good]
    if lost:
        ax.plot(lost, [0.97] * len(lost), "X", color=ACCENT, ms=7, mec="white", transform=ax.get_xaxis_transform())
        ax.set_title("✕ diverged or not finished", fontsize=8, color=ACCENT, loc="right", weight="normal")
    if best and name in best.values:
        ax.plot(at[best.values[name]], best.mean, "o", ms=12, mfc="none", mec=ACCENT, mew=1.4)
    _ticks(ax, at, numeric)


def _ticks(ax: Axes, at: dict[Any, float], numeric: bool) -> None:
    """Make every swept value a tick if there are few; the axis is logarithmic if they span more than a factor 3."""
    places = list(at.values())
    if not numeric:
        many = len(at) > 4
        ax.set_xticks(places, [str(v) for v in at], rotation=30 if many else 0, ha="right" if many else "center")
    elif min(places) > 0 and max(places) / min(places) > 3:
        set_log_axis(ax)
        if len(places) <= 8:
            ax.set_xticks(places, [format_short(v) for v in places])
    elif len(places) <= 8:
        ax.set_xticks(places)
    ax.margins(x=0.08, y=0.15)
