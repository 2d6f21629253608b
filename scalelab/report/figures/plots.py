"""Draw figures of runs from rows: loss curves with the logbook drawn on them, LR checks, sweeps.

Rows are dicts; each function names the keys it reads. Losses are in nats/token. No line is smoothed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.report.figures.style import (
    ACCENT,
    INK,
    LOSS_LABEL,
    MAX_POINTS,
    add_axes_legend,
    add_legend,
    figure_title,
    key_colours,
    make_figure,
    set_log_axis,
    styled,
    thin_points,
    value_colours,
)
from scalelab.report.tables import format_short

# kind -> marker, colour, name in the legend. Starts and ends of runs are left out: the curve shows them.
EVENT_MARKS = {
    "skip": ("x", "#c77700", "skipped step"),
    "resume": (">", "#1f77b4", "resumed"),
    "config_change": ("s", "#7b4ab5", "config changed"),
    "note": ("o", "#2b8a3e", "note"),
    "stopped": ("D", "#555555", "stopped"),
    "stopped_early": ("D", "#b3541e", "stopped early"),
    "guard": ("v", ACCENT, "alarm of the guard"),
    "rewind": ("<", "#7b4ab5", "rewound"),
    "diverged": ("X", ACCENT, "diverged"),
}
MOST_DRAWN = 24_000  # most points of all curves in one figure
RUN_COLOURS = {"train_loss": "#31688e", "val_loss": "#c77700"}  # of one run's two losses
LOSS_NAMES = {"train_loss": "training", "val_loss": "validation"}
BOTH_LOSSES = "loss (nats/token)"
DYNAMICS = {"lr": "learning rate", "grad_norm": "gradient norm", "update_ratio": "update norm / parameter norm"}
SPEED = {"tokens_per_s": "tokens per second", "mfu": "model FLOPs utilisation"}
AXIS_LABELS = {"step": "step", "tokens": "tokens", "flops": "training FLOPs (exact)"}


def group_by_run(rows: Sequence[dict], key: str) -> dict[str, list[dict]]:
    """Group the rows that have a value for `key` by their `run`."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        if row.get(key) is not None:
            groups.setdefault(row["run"], []).append(row)
    return groups


@styled
def plot_loss_curves(
    rows: Sequence[dict],
    y: str = "train_loss",
    x: str = "tokens",
    colour: str = "run",
    colour_title: str = "",
    events: Sequence[dict] = (),
    floor: float | None = None,
    title: str = "",
    held: str | None = None,
    colours: dict[Any, str] | None = None,
) -> Figure:
    """Draw the loss of one or many runs over training.

    rows: `run`, `x`, `y` and `colour`; events: `run`, `step`, `kind`. `floor` is a known entropy rate; `held` names the
    held-out run, drawn apart from the others. `colours` are those of the page, by the value of `colour`.
    """
    fig, ax = make_figure(7.2, 4.0)
    groups = group_by_run(rows, y)
    colours = colours or key_colours(colour, (run[0].get(colour) for run in groups.values()))
    _draw(ax, groups, colours, x, y, colour, held)
    set_log_axis(ax, flops=x == "flops")
    _limit(ax, groups, y)
    marks = _mark_events(ax, groups, events, x, y) + _floor(ax, floor)
    if held in groups:
        marks.insert(0, Line2D([], [], color=INK, lw=1.8, label="held-out run"))
    add_legend(fig, ax, colours, colour_title, marks)
    ax.set(xlabel=AXIS_LABELS[x], ylabel=LOSS_LABEL if y == "val_loss" else "training loss (nats/token)")
    ax.set_title(figure_title(title))
    return fig


def _draw(
    ax: Axes, groups: dict[str, list[dict]], colours: dict[Any, str], x: str, y: str, colour: str, held: str | None
) -> None:
    """Draw one thinned line for each run; few points are marked, the held-out run stands out."""
    for run, lines in groups.items():
        most = max(24, min(MAX_POINTS, MOST_DRAWN // len(groups)))
        points = thin_points([max(row[x], 1) for row in lines], [row[y] for row in lines], most)
        look: dict[str, Any] = {
            "color": colours[lines[0].get(colour)],
            "lw": 1.0 if len(groups) > 1 else 1.3,
            "alpha": 0.9,
        }
        if run == held:
            look |= {"color": INK, "lw": 1.8, "zorder": 3}  # ACCENT is that of alarms
        if len(lines) < 30:
            look |= {"marker": "o", "ms": 5 if len(lines) == 1 else 3 if len(groups) < 8 else 1.8}
        ax.plot(*points, **look)


def _limit(ax: Axes, groups: dict[str, list[dict]], y: str) -> None:
    """Limit the axis slightly above the start of training, so that a diverging run does not flatten the others."""
    values = [row[y] for lines in groups.values() for row in lines if math.isfinite(row[y])]
    starts = [lines[0][y] for lines in groups.values() if math.isfinite(lines[0][y])]
    if not values or not starts:
        return
    low, high = min(values), min(max(values), 1.1 * max(starts))
    pad = 0.05 * (high - low) or 0.1
    ax.set_ylim(low - pad, high + pad)


def _rises_above_start(groups: dict[str, list[dict]], y: str) -> bool:
    values = [row[y] for lines in groups.values() for row in lines if math.isfinite(row[y])]
    return bool(values) and max(values) > 1.1 * max(lines[0][y] for lines in groups.values())


def _mark_events(ax: Axes, groups: dict[str, list[dict]], events: Sequence[dict], x: str, y: str) -> list[Line2D]:
    """Draw each event on its run's curve; returns a legend handle for each kind drawn."""
    low, high = ax.get_ylim()
    drawn = {}
    for event in events:
        lines = groups.get(event["run"])
        if event["kind"] not in EVENT_MARKS or event.get("step") is None or not lines:
            continue
        marker, colour, label = EVENT_MARKS[event["kind"]]
        known = [row for row in lines if math.isfinite(row[y])] or lines
        # Interpolated as drawn: straight lines on a logarithmic axis.
        along = np.array([math.log(max(row[x], 1)) for row in known])
        steps, values = np.array([row["step"] for row in known], float), np.array([row[y] for row in known], float)
        at = math.log(float(np.interp(float(event["step"]), steps, np.exp(along))))
        level = min(max(float(np.nan_to_num(float(np.interp(at, along, values)))), low), high)
        edge: dict[str, Any] = {} if marker == "x" else {"mec": "white", "mew": 0.7}
        look: dict[str, Any] = {"marker": marker, "color": colour, "ls": "", "ms": 7} | edge
        ax.plot([math.exp(at)], [level], zorder=5, clip_on=False, **look)
        drawn[event["kind"]] = Line2D([], [], label=label, **look)
    return [drawn[kind] for kind in EVENT_MARKS if kind in drawn]


def _floor(ax: Axes, floor: float | None) -> list[Line2D]:
    """Draw the corpus's entropy rate, which no model can pass, as a line with room below it."""
    if floor is None:
        return []
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, floor - 0.04 * (high - floor)), high)
    return [ax.axhline(floor, color=INK, ls=":", lw=1.2, label=f"entropy rate of the corpus: {floor:.4g}")]


@styled
def plot_run_losses(
    rows: Sequence[dict], events: Sequence[dict] = (), floor: float | None = None, x: str = "tokens"
) -> Figure:
    """Training and validation loss of one run over `x`. rows: `run`, `step`, `x`, `train_loss`, `val_loss`."""
    fig, ax = make_figure(7.2, 4.0)
    lines = {y: groups for y in RUN_COLOURS if (groups := group_by_run(rows, y))}
    for y, groups in lines.items():
        _draw(ax, groups, dict.fromkeys([row.get("run") for row in rows], RUN_COLOURS[y]), x, y, "run", None)
    set_log_axis(ax)
    y = next(iter(lines))
    if _rises_above_start(lines[y], y):  # in a single run spikes matter
        set_log_axis(ax, "y")
    else:
        _limit(ax, lines[y], y)
    marks = _mark_events(ax, lines[y], events, x, y) + _floor(ax, floor)
    names = [Line2D([], [], color=RUN_COLOURS[y], lw=2, label=LOSS_NAMES[y]) for y in lines]
    add_axes_legend(fig, ax, handles=[*names, *marks], loc="best")
    ax.set(xlabel=AXIS_LABELS[x], ylabel=BOTH_LOSSES)
    return fig


@styled
def plot_steps(rows: Sequence[dict], panels: Mapping[str, str]) -> Figure:
    """Draw a run's metrics over its steps, a panel for each of `panels` {key: title}. rows: `step` and the keys."""
    fig, axes = make_figure(3.2 * len(panels), 2.8, len(panels))
    for ax, (key, label) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        known = [row for row in rows if row[key] is not None]
        ax.plot(*thin_points([row["step"] for row in known], [row[key] for row in known]), color=value_colours([0])[0])
        if key.endswith(("norm", "ratio")) and any(row[key] > 0 for row in known):
            set_log_axis(ax, "y")
        ax.set(xlabel="step", title=label)
    return fig


@styled
def plot_checks(
    rows: Sequence[dict], what: str, verdicts: Sequence[dict], colours: dict[Any, str] | None = None
) -> Figure:
    """Draw validation loss over the factor on the rule's LR or batch (`what`), a panel for each size.

    rows: `size`, `factor`, `loss` (None: diverged); verdicts as by `gather.check_verdicts`.
    """
    at_edge = {verdict["size"]: verdict["edge"] for verdict in verdicts}
    sizes = sorted({row["size"] for row in rows})
    fig, axes = make_figure(3.6 * len(sizes), 3.2, len(sizes))
    colours = colours or value_colours(sizes, "size")
    for ax, size in zip(np.atleast_1d(axes), sizes, strict=True):
        rows_of_size = sorted((row for row in rows if row["size"] == size), key=lambda row: row["factor"])
        finite = [row for row in rows_of_size if row["loss"] is not None and math.isfinite(row["loss"])]
        ax.plot([r["factor"] for r in finite], [r["loss"] for r in finite], "o-", color=colours[size], ms=6)
        best = min(finite, key=lambda r: r["loss"], default=None)
        if best is not None:
            ax.plot(best["factor"], best["loss"], "*", color=ACCENT, ms=14, mec="white")
            inside = min(rows_of_size[0]["factor"], 1) < best["factor"] < max(rows_of_size[-1]["factor"], 1)
            text = "optimum inside" if inside else "optimum at the edge: not bracketed"
            text = text if inside or at_edge[size] else "no better at the edge than the runs scatter"
            colour = ACCENT if at_edge[size] else "#2b8a3e"
            ax.text(0.5, 0.97, text, transform=ax.transAxes, ha="center", va="top", color=colour)
        for row in rows_of_size:
            if row not in finite:
                ax.axvline(row["factor"], color=ACCENT, ls="--", lw=1)
                ax.text(row["factor"], 0.5, " diverged", transform=ax.get_xaxis_transform(), color=ACCENT, rotation=90)
        ax.set_xscale("log", base=2)
        ax.set_xticks([row["factor"] for row in rows_of_size], [f"{row['factor']:g}×" for row in rows_of_size])
        ax.margins(x=0.15, y=0.3)
        ax.set(
            xlabel=f"{what} / the rule's {what}",
            ylabel=LOSS_LABEL,
            title=f"N = {size if isinstance(size, str) else format_short(size)}",
        )
    return fig
