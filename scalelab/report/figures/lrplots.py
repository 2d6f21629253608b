"""Draw losses over settings and their minima: learning rates by width, best settings and their laws."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.laws.use.settings.best import BestSettings, SettingGroup
from scalelab.laws.use.settings.law import SettingLaw
from scalelab.report.figures.fitplots import CURVE_POINTS, Drawn, write_drawn
from scalelab.report.figures.style import (
    ACCENT,
    INK,
    LOSS_LABEL,
    MUTED,
    add_legend,
    figure_title,
    make_figure,
    set_log_axis,
    styled,
    value_colours,
    write_figure,
)
from scalelab.report.tables import format_short

MOST_NAMED = 8  # most curves in a legend, most ticks on an axis
MARKERS = ("o", "s", "D", "^")


@styled
def plot_lr_transfer(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw a panel of curves for each parametrization, and one of the best log2 LR over d_model with its interval.

    rows: `parametrization`, `d_model`, `log2_lrs` [K], `losses` [seeds][K] (None: diverged), `log2_lr`, `interval90`
    (None: there is none), `loss`.
    """
    kinds = list(dict.fromkeys(row["parametrization"] for row in rows))
    colours = value_colours(row["d_model"] for row in rows)
    fig, axes = make_figure(3.9 * (len(kinds) + 1), 3.8, len(kinds) + 1)
    for ax, kind in zip(axes, kinds, strict=False):
        for row in (row for row in rows if row["parametrization"] == kind):
            add_lr_curve(ax, row, colours[row["d_model"]])
        ax.set_title(kind)
    low, high = (f(row["loss"] for row in rows) for f in (min, max))
    for ax in axes[:-1]:  # diverged losses may leave the panel
        ax.set_ylim(low - 0.2 * (high - low) - 0.01, high + 1.6 * (high - low) + 0.02)
    handles = [Line2D([], [], color=colour, lw=2, label=f"{width}") for width, colour in colours.items()]
    axes[0].legend(handles=handles, title="d_model", loc="upper center", ncols=2)
    _best(axes[-1], rows, kinds)
    return fig


@styled
def plot_lr_optima(rows: Sequence[dict[str, Any]], title: str = "") -> Figure:
    """Draw a sweep's losses over learning rates, a curve for each `label`; a star marks the parabola's minimum.

    rows: `label`, and those of `plot_lr_transfer` without the parametrization; `interior` false: no star.
    """
    fig, ax = make_figure(5.4, 3.6)
    colours = value_colours(row["label"] for row in rows)
    for row in rows:
        add_lr_curve(ax, row, colours[row["label"]])
    if 1 < len(rows) <= MOST_NAMED:
        handles = [Line2D([], [], color=colour, lw=2, label=label) for label, colour in colours.items()]
        ax.legend(handles=handles, fontsize=7)
    ticks = sorted({x for row in rows for x in row["log2_lrs"]})
    ticks = ticks[:: -(-len(ticks) // MOST_NAMED)]
    ax.set_xticks(ticks, [format_short(2**x) for x in ticks])
    ax.set(xlabel="peak learning rate", title=title)
    return fig


def add_lr_curve(ax: Axes, row: dict[str, Any], colour: str) -> None:
    """Draw the mean over seeds as a line, every seed as a dot, the best as a star with its interval."""
    x, losses = np.asarray(row["log2_lrs"], float), np.asarray(row["losses"], float)
    ax.plot(x, losses.mean(0), color=colour)
    for one in losses:
        ax.plot(x, one, ".", color=colour, ms=3, alpha=0.6)
    if row["interval90"]:
        ax.plot(row["interval90"], [row["loss"]] * 2, color=ACCENT, lw=1)
    if row.get("interior", True):
        ax.plot(row["log2_lr"], row["loss"], "*", color=ACCENT, ms=9, mec="white", mew=0.6, zorder=5)
    ax.set(xlabel="log2 of the peak learning rate", ylabel=LOSS_LABEL)


def _best(ax: Axes, rows: Sequence[dict[str, Any]], kinds: Sequence[str]) -> None:
    colours = value_colours(kinds)
    for kind, mark in zip(kinds, MARKERS, strict=False):
        rows_of_kind = [row for row in rows if row["parametrization"] == kind]
        x, y = np.log2([row["d_model"] for row in rows_of_kind]), np.array([row["log2_lr"] for row in rows_of_kind])
        ends = np.array([row["interval90"] or [row["log2_lr"]] * 2 for row in rows_of_kind]).T
        ax.errorbar(x, y, np.abs(ends - y), marker=mark, color=colours[kind], capsize=2.5, label=kind)
    widths = sorted({row["d_model"] for row in rows})
    top = max(row["log2_lr"] for row in rows)
    ax.plot(np.log2(widths), top - np.log2(np.array(widths) / widths[0]), ":", color=MUTED, label="1 / width")
    ax.set_xticks(np.log2(widths), [str(width) for width in widths])
    ax.set(xlabel="d_model", ylabel="best log2 learning rate", title="where it is lowest")
    ax.legend()


def write_lr_figure(path: str, fig: Figure, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Write a figure to `path` (.pdf, with the CSV of its numbers beside it, or .png); returns what was written."""
    numbers = [
        {key: row[key] for key in ("parametrization", "d_model") if key in row}
        | {"log2_lr": x, "seed_index": i, "loss": one[k]}
        for row in rows
        for i, one in enumerate(row["losses"])
        for k, x in enumerate(row["log2_lrs"])
    ]
    return write_figure(path, fig, numbers)


def write_settings_figures(
    folder: str | os.PathLike[str], best: BestSettings, table: Mapping[str, np.ndarray]
) -> list[str]:
    """Draw best settings into the folder: each group's curves (`settings`), and the laws through the optima
    (`settings-law`), where there are any; returns the paths. `table`: the columns [P] that they were found in."""
    figures = {"settings": plot_setting_curves(best, table)} if best.with_status("used", "edge") else {}
    figures |= {"settings-law": plot_setting_laws(best)} if best.laws else {}
    return [path for name, drawn in figures.items() for path in write_drawn(folder, name, drawn)]


@styled
def plot_setting_curves(best: BestSettings, table: Mapping[str, np.ndarray]) -> Drawn:
    """A panel a setting: each group's losses over it above the group's lowest, the parabola, and the optimum.

    Of several settings the others are at their best: what the surface says that they cost is taken off each loss.
    """
    fig, axes = make_figure(4.6 * len(best.best_of) + 1.2, 3.9, len(best.best_of))
    groups = best.with_status("used", "edge")
    colours = _group_colours(groups, best.per)
    rows: list[dict[str, Any]] = []
    for k, (ax, name) in enumerate(zip(np.atleast_1d(axes), best.best_of, strict=True)):
        for group in groups:
            rows += _draw_setting_curve(ax, best, group, k, table, colours[group.values[best.per[0]]])
        set_log_axis(ax)
        ax.set(xlabel=name, title=figure_title("" if k else f"losses of each {', '.join(best.per)}, and its best"))
        ax.set(ylabel="" if k else "loss above the group's best (%)")
    add_legend(fig, np.atleast_1d(axes)[0], colours, best.per[0])
    return fig, rows


def _draw_setting_curve(
    ax: Axes, best: BestSettings, group: SettingGroup, k: int, table: Mapping[str, np.ndarray], colour: str
) -> list[dict[str, Any]]:
    """Draw one group's losses, parabola and optimum over setting k; returns the numbers behind them."""
    optimum, name = group.optimum, best.best_of[k]
    surface, at = optimum.surface, optimum.at
    assert surface is not None and at is not None
    x = np.log(np.stack([table[each][group.rows] for each in best.best_of], axis=1))
    here = np.where(np.arange(len(at)) == k, x, at)  # the other settings at their best
    cost = np.array([surface.height(a) - surface.height(b) for a, b in zip(x, here, strict=True)])
    above = 100 * np.expm1(np.log(table["loss"][group.rows]) - cost - surface.height(at))
    used = np.ones(len(x), bool) if optimum.inside is None else optimum.inside
    low, high = np.exp([x[used, k].min(), x[used, k].max()])
    line = np.geomspace(low, high, CURVE_POINTS)
    places = np.tile(at, (CURVE_POINTS, 1))
    places[:, k] = np.log(line)
    rise = 100 * np.expm1([surface.height(place) - surface.height(at) for place in places])
    ax.plot(table[name][group.rows][used], above[used], "o", color=colour, ms=3, alpha=0.5, mew=0)
    ax.plot(line, rise, color=colour, lw=1.1)
    beyond = bool(optimum.ends[k])
    if not beyond:
        ax.plot(np.exp(at[k]), 0, "*", color=colour, ms=10, mec=INK, mew=0.5, zorder=5)
    ends = best.interval(group, name) or (None, None)
    facts = {"setting": name, **group.values}
    numbers = [
        {"kind": "run", **facts, "value": v, "above": y, "used": u}
        for v, y, u in zip(table[name][group.rows], above, used, strict=True)
    ]
    numbers += [{"kind": "parabola", **facts, "value": v, "above": y} for v, y in zip(line, rise, strict=True)]
    end = {
        "status": "edge" if beyond else "used",
        "low": ends[0],
        "high": ends[1],
        "loss": np.exp(optimum.value or 0.0),
    }
    return [*numbers, {"kind": "optimum", **facts, "value": np.exp(at[k]), "above": 0.0, **end}]


@styled
def plot_setting_laws(best: BestSettings) -> Drawn:
    """A panel a law: optima with their intervals over its last column, coloured by the first, and the law.

    An optimum beyond what was tried is an arrow from the end.
    """
    laws = list(best.laws.values())
    fig, axes = make_figure(4.6 * len(laws) + 1.2, 3.9, len(laws))
    groups = best.with_status("used", "edge")
    colours = _group_colours(groups, best.per)
    rows: list[dict[str, Any]] = []
    for ax, law in zip(np.atleast_1d(axes), laws, strict=True):
        for group in groups:
            rows.append(_draw_optimum(ax, best, group, law, colours[group.values[best.per[0]]]))
        rows += _draw_setting_law(ax, best, law, colours)
        set_log_axis(ax)
        set_log_axis(ax, "y")
        exponents = ", ".join(f"{name}^{value:.3g}" for name, value in law.exponents.items())
        ax.set(xlabel=law.columns[-1], ylabel=f"best {law.setting}", title=figure_title(f"{law.setting} ~ {exponents}"))
    handles = [Line2D([], [], marker="^", ls="", color=MUTED, label="beyond what was tried")]
    add_legend(fig, np.atleast_1d(axes)[0], colours, best.per[0], handles if best.with_status("edge") else [])
    return fig, rows


def _draw_optimum(ax: Axes, best: BestSettings, group: SettingGroup, law: SettingLaw, colour: str) -> dict[str, Any]:
    """Draw one group's optimum, or an arrow from the end beyond which it lies."""
    optimum, k, x = group.optimum, best.best_of.index(law.setting), group.values[law.columns[-1]]
    assert optimum.at is not None
    value, end = float(np.exp(np.clip(optimum.at[k], *optimum.tried[k]))), int(optimum.ends[k])
    low, high = best.interval(group, law.setting) or (value, value)
    if end:
        ax.plot(x, value, "^" if end > 0 else "v", color=colour, ms=7, mec=INK, mew=0.5, zorder=4)
    else:
        ax.errorbar([x], [value], [[value - low], [high - value]], fmt="o", color=colour, ms=4.5, capsize=2, zorder=4)
    facts = {"kind": "bound" if end else "optimum", "setting": law.setting, **group.values, "value": value}
    return facts | ({"side": end} if end else {"low": low, "high": high})


def _draw_setting_law(ax: Axes, best: BestSettings, law: SettingLaw, colours: dict[float, str]) -> list[dict[str, Any]]:
    """Draw the law over its last column with its interval, one line for each value of another first column."""
    x_name, first = law.columns[-1], best.per[0]
    x = [group.values[x_name] for group in best.with_status("used", "edge")]
    line = np.geomspace(min(x) / 1.3, max(x) * 1.3, CURVE_POINTS)
    by_first = first in law.columns and first != x_name
    centre = dict(zip(law.columns, np.exp(law.centre).tolist(), strict=True))
    rows = []
    for value in colours if by_first else [None]:
        given = centre | ({first: value} if value is not None else {})
        curve = np.array([law.predict(given | {x_name: at}, new=False) for at in line])
        colour = colours[value] if value is not None else INK
        ax.plot(line, curve[:, 0], color=colour, lw=1.1)
        ax.fill_between(line, curve[:, 1], curve[:, 2], color=colour, alpha=0.12, lw=0)
        rows += [
            {"kind": "law", "setting": law.setting, **given, x_name: at, "value": y, "low": low, "high": high}
            for at, (y, low, high) in zip(line, curve, strict=True)
        ]
    return rows


def _group_colours(groups: Sequence[SettingGroup], per: Sequence[str]) -> dict[float, str]:
    """Colours by the groups' values of the first --per column."""
    return value_colours((group.values[per[0]] for group in groups), "size" if per[0] == "N" else "value")
