"""Draw exponents of gradients, weights and updates, layer by layer, over the ranges of narrow formats."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalelab.precision.exponent_histograms import NARROW_FORMATS, float_range
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_legend, styled, value_colours

TENSOR_KINDS = ("gradient", "weight", "update")
FORMAT_LABELS = {"bfloat16": "bf16", "float16": "fp16", "float8_e5m2": "e5m2", "float8_e4m3fn": "e4m3"}
LEAST_SHARE = 1e-5  # least share of a layer's numbers for which a power of two is drawn


@styled
def plot_exponents(rows: Sequence[dict[str, Any]]) -> tuple[Figure, list[dict[str, Any]]]:
    """Draw a panel for each kind: each layer's share of numbers at each power of two, over the ranges of formats.

    rows: those of `exponents.rows`. Also returns the numbers behind it, one row a (kind, layer, power).
    """
    kinds = [kind for kind in TENSOR_KINDS if any(row["kind"] == kind for row in rows)]
    fig = Figure(figsize=(3.3 * len(kinds) + 1.2, 4.6), layout="constrained")
    axes = fig.subplots(2, len(kinds), sharex=True, sharey="row", height_ratios=(3, 1), squeeze=False)
    names = list(dict.fromkeys(row["layer"] for row in rows))
    colours = dict(zip(names, value_colours(range(len(names))).values(), strict=True))
    data: list[dict[str, Any]] = []
    for column, kind in enumerate(kinds):
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        for row in rows_of_kind:
            data += _layer(axes[0, column], row, colours[row["layer"]])
        axes[0, column].set(yscale="log", title=f"{kind}s")
        _ranges(axes[1, column], rows_of_kind)
    shown = [row["power"] for row in data]
    axes[0, 0].set(ylabel="share of the layer's numbers", xlim=(max(min(shown), -50) - 1, max(*shown, 16) + 2))
    axes[1, 0].set_yticks(range(len(NARROW_FORMATS)), [FORMAT_LABELS[form] for form in NARROW_FORMATS])
    axes[1, 0].set(ylim=(len(NARROW_FORMATS) - 0.4, -0.6))
    add_legend(fig, axes[0, -1], colours, "layer")
    return fig, data


def _layer(ax: Axes, row: dict[str, Any], colour: str) -> list[dict[str, Any]]:
    total = sum(row["exponents"].values())
    shares = {int(e): n / total for e, n in row["exponents"].items() if n / total >= LEAST_SHARE}
    ax.step([e + 0.5 for e in shares], list(shares.values()), where="mid", color=colour, lw=1.1)
    return [{"kind": row["kind"], "layer": row["layer"], "power": e, "share": share} for e, share in shares.items()]


def _ranges(ax: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Draw a bar for each format, pale for subnormals, with the largest share that a layer would lose."""
    for i, form in enumerate(NARROW_FORMATS):
        small, normal, most = (math.log2(x) for x in float_range(form))
        for start, end, alpha in ((small, normal, 0.35), (normal, most, 0.9)):
            ax.plot([start, end], [i, i], color=MUTED, alpha=alpha, lw=7, solid_capstyle="butt")
        worst = max(row["lost"][form]["zero"] + row["lost"][form]["overflow"] for row in rows)
        text, colour = (f"loses {worst:.1%}", ACCENT) if worst >= 5e-4 else ("loses < 0.05 %", INK)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
        ax.annotate(text, (0.02, i), fontsize=7, color=colour, bbox=box, **place)
    ax.set(xlabel="power of two")
    ax.grid(axis="y", visible=False)
