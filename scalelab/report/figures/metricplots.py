"""Draw logged metrics: a panel for each metric or family, and maps of layer and step."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from scalelab.report.figures.style import (
    INK,
    add_legend,
    is_narrow,
    make_figure,
    set_log_axis,
    styled,
    thin_points,
    value_colours,
)
from scalelab.report.tables import format_short

COLUMNS = 3
WIDE = 20.0  # ratio of the largest to the smallest value from which a panel's axis is logarithmic
DASHES: tuple[Any, ...] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (5, 1, 1, 1)),
    (0, (1, 3)),
)  # one style for each name, as colours stand for runs
MOST_NAMES = 8  # most names of a family in its panel's legend; of more, evenly chosen ones
# quantity of layers.jsonl -> (title, whether its colours are logarithmic); others follow under their own names, linear
MAPS = {
    "grad_norm": ("gradient norm", True),
    "update_norm": ("update norm", True),
    "weight_norm": ("weight norm", True),
    "update_ratio": ("update norm / weight norm", True),
    "residual_rms": ("residual stream, RMS after the block", True),
    "attention_logit_max": ("largest attention logit", False),
    "attention_entropy": ("attention entropy (nats)", False),
    "dead_units": ("share of dead MLP units", False),
    "eps_share": ("share with sqrt(v) < eps", False),
    "gradient_zeros": ("share of zeros in the gradient", False),
    "expert_entropy": ("experts: entropy of the load / that of an even one", False),
    "expert_bias_range": ("experts: largest minus smallest bias", False),
}
OF_EXPERTS = "expert_share/"  # quantities of layers.jsonl, one a layer, with a value an expert: a figure of their own
MOST_LAYERS = 6  # panels of that figure; of more layers, evenly chosen ones
MOST_STEPS = 400  # columns of a map
BELOW = ("embed", "positions")  # groups drawn below the first layer; other groups are drawn above the last layer
KEYS = ("run", "step", "read/digest")  # keys of a row that are not metrics, or hashes


def group_names(names: Iterable[str]) -> dict[str, list[str]]:
    """`mine/a`, `lr`, `mine/b` -> {"mine": ["mine/a", "mine/b"], "lr": ["lr"]}: panels, in order of appearance."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition("/")[0], []).append(name)
    return groups


def split_constant(rows: Sequence[dict]) -> tuple[dict[str, list[str]], dict[str, float | None]]:
    """({panel: metrics} to draw, {metric: value} of panels that are constant; None: no finite number).

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
def metric_panels(
    rows: Sequence[dict],
    panels: Mapping[str, Sequence[str]],
    colour_of: Mapping[str, Any],
    colours: Mapping[Any, str] | None = None,
) -> Figure:
    """Draw metrics over the steps, unsmoothed: a panel for each family, a line for each name and run.

    rows: `run`, `step` and metrics; panels: {title: metrics}. `colour_of` maps each run to the value that colours its
    lines, and `colours` those of the page; a single run's lines are coloured by name.
    """
    fig, axes = make_grid(len(panels), 3.3, 2.5)
    runs = {run: [row for row in rows if row["run"] == run] for run in dict.fromkeys(row["run"] for row in rows)}
    shade = dict(colours or value_colours((colour_of[run] for run in runs), "name"))
    for ax, (title, names) in zip(axes, panels.items(), strict=True):
        _panel(ax, runs, names, {run: shade[colour_of[run]] for run in runs})
        ax.set(xlabel="step", title=title)
    if len(runs) > 1:
        add_legend(fig, axes[0], shade, "")
    return fig


def make_grid(panels: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """Make (figure, axes [panels]) of at most COLUMNS columns; width and height of a panel in inches."""
    columns = min(COLUMNS, panels)
    if is_narrow() or columns == panels:
        fig, axes = make_figure(width * columns, height, panels)
        return fig, np.atleast_1d(axes)
    fig = Figure(figsize=(width * columns, height * math.ceil(panels / columns)), layout="constrained")
    axes = fig.subplots(math.ceil(panels / columns), columns).flat
    for ax in axes[panels:]:
        ax.set_visible(False)
    return fig, axes[:panels]


def _panel(ax: Axes, runs: Mapping[str, list[dict]], names: Sequence[str], colour_of_run: Mapping[str, str]) -> None:
    by_name, drawn, handles = value_colours(range(len(names)), "name"), [], []
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


@styled
def layer_maps(lines: Sequence[dict]) -> Figure:
    """Draw a map of layer (up) and step (right) for each quantity of layers.jsonl; norms also of groups.

    lines: `step`, lists (a value a layer) and numbers called `group/quantity`. No value is averaged: of many steps,
    some are left out.
    """
    lines = [lines[index] for index in np.unique(np.linspace(0, len(lines) - 1, MOST_STEPS).astype(int))]
    quantities = [key for key, value in lines[-1].items() if isinstance(value, list) and not _is_of_experts(key)]
    quantities = [name for name in MAPS if name in quantities] + [name for name in quantities if name not in MAPS]
    fig, axes = make_grid(len(quantities), 3.7, 2.8)
    for ax, name in zip(axes, quantities, strict=True):
        _map(fig, ax, lines, name)
    return fig


def layer_rows(lines: Sequence[dict]) -> list[dict]:
    """The numbers behind `layer_maps`, a row a step and layer or group: `step`, `layer`, and each quantity."""
    rows = []
    for line in lines:
        places: dict[Any, dict] = {}
        for key, value in line.items():
            if _is_of_experts(key):
                continue
            if isinstance(value, list):
                for layer, each in enumerate(value):
                    places.setdefault(layer, {})[key] = each
            elif key.partition("/")[2] in line:
                group, _, quantity = key.partition("/")
                places.setdefault(group, {})[quantity] = value
        rows += [{"step": line["step"], "layer": place} | values for place, values in places.items()]
    return rows


def _is_of_experts(key: str) -> bool:
    return key.startswith(OF_EXPERTS)


def expert_rows(lines: Sequence[dict]) -> list[dict]:
    """Rows of `step`, `layer`, `expert` and `load`, over the mean of the layer, at each step of layers.jsonl."""
    return [
        {"step": line["step"], "layer": int(key.removeprefix(OF_EXPERTS)), "expert": expert, "load": load}
        for line in lines
        for key in line
        if _is_of_experts(key)
        for expert, load in enumerate(line[key])
    ]


@styled
def expert_maps(lines: Sequence[dict]) -> Figure:
    """Draw a map of expert (up) and step (right) for each of some layers: the load over the layer's mean.

    White is a load of one, so that an expert without tokens and one with many stand out on both sides.
    """
    lines = [lines[index] for index in np.unique(np.linspace(0, len(lines) - 1, MOST_STEPS).astype(int))]
    names = sorted((key for key in lines[-1] if _is_of_experts(key)), key=lambda key: int(key.removeprefix(OF_EXPERTS)))
    names = [names[i] for i in np.unique(np.linspace(0, len(names) - 1, MOST_LAYERS).round().astype(int))]
    fig, axes = make_grid(len(names), 3.7, 2.8)
    for ax, name in zip(axes, names, strict=True):
        table = np.array([line[name] for line in lines if name in line], float).T
        edges = _edges([line["step"] for line in lines if name in line]), np.arange(len(table) + 1) - 0.5
        drawn = ax.pcolormesh(*edges, table, norm=TwoSlopeNorm(1, 0, 2), cmap="RdBu_r", rasterized=True)
        shown = np.unique(np.linspace(0, len(table) - 1, min(len(table), 8)).round().astype(int))
        ax.set_yticks(shown, map(str, shown))
        ax.grid(False)
        ax.set(xlabel="step", ylabel="expert", title=f"block {name.removeprefix(OF_EXPERTS)}: load / mean")
        fig.colorbar(drawn, ax=ax, extend="max")
    return fig


def _map(fig: Figure, ax: Axes, lines: Sequence[dict], name: str) -> None:
    groups = [key.partition("/")[0] for key in lines[-1] if key.endswith(f"/{name}")]
    below, above = [g for g in BELOW if g in groups], [g for g in groups if g not in BELOW]
    table = np.array(
        [
            [*(line.get(f"{g}/{name}") for g in below), *line[name], *(line.get(f"{g}/{name}") for g in above)]
            for line in lines
        ],
        float,
    ).T
    layers = table.shape[0] - len(below) - len(above)
    title, logarithmic = MAPS.get(name, (name, False))
    known = table[np.isfinite(table) & ((table > 0) | (not logarithmic))]
    low, high = (known.min(), known.max()) if known.size else (1.0, 1.0)
    scale: Any = LogNorm if logarithmic else Normalize
    if low == high:
        low, high = (low / 2, high * 2) if logarithmic else (low, low + 1)
    steps = [line["step"] for line in lines]
    drawn = ax.pcolormesh(
        _edges(steps),
        np.arange(len(table) + 1) - 0.5,
        np.ma.masked_invalid(table),
        norm=scale(low, high),
        cmap="viridis",
        rasterized=True,  # a picture, which is equal on a light and a dark page
    )
    shown = np.unique(np.linspace(0, layers - 1, min(layers, 7)).round().astype(int))
    places = [*range(len(below)), *(len(below) + shown), *range(len(below) + layers, len(table))]
    ax.set_yticks(places, [*below, *map(str, shown), *above])
    ax.grid(False)
    ax.set(xlabel="step", title=title)
    bar = fig.colorbar(drawn, ax=ax)
    if logarithmic:
        set_log_axis(bar.ax, "y")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda x, _: format_short(x)))


def _edges(steps: Sequence[int]) -> np.ndarray:
    """Borders between the columns of a map: half way between steps."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middles = (np.array(steps[1:]) + np.array(steps[:-1])) / 2
    return np.concatenate([[2 * steps[0] - middles[0]], middles, [2 * steps[-1] - middles[-1]]])
