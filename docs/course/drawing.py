"""Figures of the course: lines, and pipelines; shown in a notebook as a small PNG that has the same bytes each time."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scalelab.report.figures.style import ACCENT, INK, MUTED, make_figure, set_log_axis, styled

STYLES = ((INK, "o-"), (ACCENT, "s--"), ("#c07f1a", "^:"), ("#2b6cb0", "D-."), (MUTED, "v-"))
DPI = 80  # a figure of 8 inches has 640 pixels and some 20 KB
MOST_MARKS = 30  # a line of more points is drawn without markers


class Picture:
    """A figure for a notebook: IPython and docs/notebook.py both ask for `_repr_png_`; `alt` says it in words."""

    def __init__(self, alt: str, png: bytes) -> None:
        self.alt, self.png = alt, png

    def __repr__(self) -> str:
        return f"<figure: {self.alt}>"

    def _repr_png_(self) -> bytes:
        return self.png


@styled
def draw_lines(alt: str, *panels: dict[str, Any]) -> Picture:
    """Draw panels side by side, each {title, x, y: labels, log: axes, lines: {name: (x, y)}, at: x to mark, ticks}."""
    fig, axes = make_figure(4.1 * len(panels) if len(panels) > 1 else 5.2, 3.1, len(panels))
    for ax, panel in zip([axes] if len(panels) == 1 else axes, panels, strict=True):
        for (name, (x, y)), (colour, style) in zip(panel["lines"].items(), STYLES, strict=False):
            _draw(ax, name, x, y, colour, style)
        for which in panel.get("log", ""):
            set_log_axis(ax, which)
        if "ticks" in panel:
            ax.set_xticks(panel["ticks"])
        if "at" in panel:
            ax.axvline(panel["at"], color=MUTED, lw=0.8, ls=":")
        ax.set(title=panel["title"], xlabel=panel["x"], ylabel=panel["y"])
        if len(panel["lines"]) > 1:
            ax.legend()
    return _as_picture(alt, fig)


def _draw(ax: Any, name: str, x: Sequence[float], y: Sequence[float], colour: str, style: str) -> None:
    dash = style[1:] if len(x) > MOST_MARKS else style
    ax.plot(x, y, dash, color=colour, ms=3.5, label=name)


@styled
def draw_pipelines(alt: str, *panels: dict[str, Any]) -> Picture:
    """Draw pipeline schedules below each other, each {title, table: a `TickTable`}; a backward is twice as long."""
    fig = Figure(figsize=(8.2, 1.5 * len(panels)), layout="constrained")
    for ax, panel in zip(fig.subplots(len(panels), 1, squeeze=False).flat, panels, strict=True):
        at = 0.0
        for forward, backward in zip(_works(panel["table"].forward), _works(panel["table"].backward), strict=True):
            for works, length, colour in ((forward, 1, "#b9d3ee"), (backward, 2, "#f2c58a")):
                for stage, microbatch in works:
                    ax.barh(stage, length, 0.9, at, color=colour, edgecolor="white", lw=0.6)
                    ax.text(at + length / 2, stage, microbatch + 1, ha="center", va="center", fontsize=6.5)
                at += length if works else 0
        ax.set(title=panel["title"], ylabel="stage", yticks=range(panel["table"].forward.runs.shape[1]), xlim=(0, at))
        ax.invert_yaxis()
        ax.grid(False)
    return _as_picture(alt, fig)


def _works(operations: Any) -> list[list[tuple[int, int]]]:
    """[(stage, micro-batch)] that run at each tick."""
    return [
        [(int(stage), int(row[stage])) for stage in np.flatnonzero(runs)]
        for runs, row in zip(operations.runs, operations.microbatch, strict=True)
    ]


def _as_picture(alt: str, fig: Figure) -> Picture:
    file = io.BytesIO()
    fig.savefig(file, format="png", dpi=DPI, metadata={"Software": "scalelab"})
    return Picture(alt, file.getvalue())
