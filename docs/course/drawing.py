"""Figures of the course: lines in panels, shown in a notebook as a small PNG that has the same bytes each time."""

import io
from collections.abc import Sequence
from typing import Any

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
    """Draw panels side by side, each {title, x, y: labels, log: axes, lines: {name: (x, y)}, at: x to mark}."""
    fig, axes = make_figure(4.1 * len(panels) if len(panels) > 1 else 5.2, 3.1, len(panels))
    for ax, panel in zip([axes] if len(panels) == 1 else axes, panels, strict=True):
        for (name, (x, y)), (colour, style) in zip(panel["lines"].items(), STYLES, strict=False):
            _draw(ax, name, x, y, colour, style)
        for which in panel.get("log", ""):
            set_log_axis(ax, which)
        if "at" in panel:
            ax.axvline(panel["at"], color=MUTED, lw=0.8, ls=":")
        ax.set(title=panel["title"], xlabel=panel["x"], ylabel=panel["y"])
        if len(panel["lines"]) > 1:
            ax.legend()
    file = io.BytesIO()
    fig.savefig(file, format="png", dpi=DPI, metadata={"Software": "scalelab"})
    return Picture(alt, file.getvalue())


def _draw(ax: Any, name: str, x: Sequence[float], y: Sequence[float], colour: str, style: str) -> None:
    dash = style[1:] if len(x) > MOST_MARKS else style
    ax.plot(x, y, dash, color=colour, ms=3.5, label=name)
