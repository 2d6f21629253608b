"""The style of all figures: one look, a colour map for each quantity, layouts, and saving with CSV."""

import contextlib
import contextvars
import dataclasses
import io
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from scalelab.errors import BadInput, nearest_hint
from scalelab.report.tables import csv_text, format_scientific, format_short
from scalelab.untrusted.files import replace_file

INK = "#222222"
RC_PARAMS: dict[Any, Any] = {
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is a name
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#333333",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e6ea",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "svg.hashsalt": "scalelab",  # fixed, so that equal figures have equal bytes
    "svg.fonttype": "none",  # text stays text in the page
    "pdf.fonttype": 42,  # text stays text in the PDF
}
ACCENT = "#d1335b"  # colour of predictions, held-out runs, and warnings
MUTED = "#8a8f98"  # what only accompanies
LOSS_LABEL = "validation loss (nats/token)"
FIGURE_SUFFIXES = (".pdf", ".png")
MAX_POINTS = 400  # most points of a curve; more only make the page heavier
MOST_NAMES = 16  # names in a key

styled = matplotlib.rc_context(RC_PARAMS)  # decorator of every plot function
# {quantity: (colour map, its range)}: the lightest end of each map is too pale on white. A quantity has one map.
PALETTES = {"size": ("viridis", 0.0, 0.86), "budget": ("plasma", 0.05, 0.8), "value": ("cool", 0.3, 1.0),
            "seed": ("copper", 0.4, 0.95), "name": ("turbo", 0.06, 0.9)}  # fmt: skip
PALETTE_OF = {"N": "size", "model.d_model": "size", "size": "size", "train.seed": "seed", "run": "name",
              "side": "name", "sweep": "name"}  # fmt: skip
PANEL_WIDTH_IN = 2.4  # width under which panels stand below each other
PAPER_POINTS = 8.0


@dataclasses.dataclass(frozen=True)
class Layout:
    """Width of a figure in inches (None: the figure's choice), and whether it is for a paper: 8 pt, no title."""

    width_in: float | None = None
    paper: bool = False


PHONE = Layout(3.7)
_layout = contextvars.ContextVar[Layout]("layout")


@contextlib.contextmanager
def use_layout(layout: Layout) -> Iterator[None]:
    """Lay out the figures drawn within it for a page, a phone or a paper."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


def current_layout() -> Layout:
    """The layout of the figures that are drawn now."""
    return _layout.get(Layout())


def is_narrow() -> bool:
    """Whether the figure being drawn is too narrow for a legend beside its axes."""
    width = current_layout().width_in
    return width is not None and width < 2 * PANEL_WIDTH_IN


def figure_title(title: str) -> str:
    """The title of a whole figure; none on paper, where the caption says it."""
    return "" if current_layout().paper else title


def make_figure(
    width: float = 6.4, height: float = 4.0, columns: int = 1, ratios: Sequence[float] | None = None
) -> Any:
    """(figure, axes) without pyplot's global state; sizes in inches. `axes`: one Axes, or an array if columns > 1.

    In a layout of a given width the panels stand in as many columns as fit.
    """
    total = current_layout().width_in
    if total is None:
        fig = Figure(figsize=(width, height), layout="constrained")
        return fig, fig.subplots(1, columns, width_ratios=ratios)
    across = min(columns, max(1, int(total / PANEL_WIDTH_IN)))
    lines = -(-columns // across)
    panel_height = min(height, 0.78 * total / across)
    fig = Figure(figsize=(total, lines * panel_height), layout="constrained")
    axes = fig.subplots(lines, across, squeeze=False, width_ratios=ratios if across == columns else None).flat
    for ax in axes[columns:]:
        ax.set_visible(False)
    return fig, axes[0] if columns == 1 else axes[:columns]


def key_colours(key: str | None, values: Iterable[Any]) -> dict[Any, str]:
    """Colours for a key's values (of a config or row), by the palette of its quantity."""
    return value_colours(values, PALETTE_OF.get(key or "", "value"))


def value_colours(values: Iterable[Any], palette: str = "value") -> dict[Any, str]:
    """Colours of PALETTES for distinct values: positive numbers by their logarithm, other values by rank."""
    known = sorted(set(values), key=lambda v: (isinstance(v, str) or v is None, v if v is not None else ""))
    if not known:
        return {}
    if all(isinstance(v, int | float) and v > 0 for v in known) and len(known) > 6:
        position = np.log(np.array(known, float))
    else:
        position = np.arange(len(known), dtype=float)
    span = position[-1] - position[0] or 1.0
    name, darkest, lightest = PALETTES[palette]
    at = darkest + (lightest - darkest) * (position - position[0]) / span
    return {value: to_hex(matplotlib.colormaps[name](x)) for value, x in zip(known, at, strict=True)}


def add_legend(fig: Figure, ax: Axes, colours: dict[Any, str], title: str, extra: Sequence[Artist] = ()) -> None:
    """List the coloured values beside the axes (five if there are many), and `extra` handles below them.

    In a narrow figure both stand below the axes, where they hide nothing.
    """
    handles = colour_handles(colours)
    if is_narrow():
        _add_legend_below(fig, [*handles, *extra], title)
        return
    if handles:
        fig.legend(handles=handles, title=title, alignment="left", title_fontsize=8, loc="outside right upper")
    if extra:
        ax.legend(handles=list(extra), loc="best")


def _add_legend_below(fig: Figure, handles: Sequence[Any], title: str = "") -> None:
    """Add a legend below the axes, for which the figure grows."""
    if not handles:
        return
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(4, 44 // (longest + 6)))
    lines = -(-len(handles) // columns) + bool(title)
    fig.set_figheight(fig.get_figheight() + 0.17 * lines + 0.12)
    fig.legend(
        handles=handles, title=title, alignment="left", title_fontsize=8, loc="outside lower left", ncols=columns
    )


def colour_handles(colours: dict[Any, str]) -> list[Any]:
    """Make the handles of a key: every value; of many only five numbers or MOST_NAMES names; none for one value."""
    known = list(colours)
    most = MOST_NAMES if known and isinstance(known[0], str) else 5 if len(known) > 8 else 8
    if len(known) > most:
        known = [known[round(i)] for i in np.linspace(0, len(known) - 1, most)]
    if len(known) < 2:
        return []
    return [Line2D([], [], color=colours[v], lw=2.2, label=v if isinstance(v, str) else format_short(v)) for v in known]


def add_axes_legend(fig: Figure, ax: Axes, **style: Any) -> None:
    """Add a legend inside the axes, in a narrow figure below them; none if nothing has a label."""
    if not (style.get("handles") or ax.get_legend_handles_labels()[0]):
        return
    if is_narrow():
        _add_legend_below(fig, style.get("handles") or ax.get_legend_handles_labels()[0], style.get("title") or "")
    else:
        ax.legend(**style)


def set_log_axis(ax: Axes, which: str = "x", flops: bool = False) -> None:
    """Make an axis logarithmic with plain tick labels (powers of ten for FLOPs), even below a decade."""
    axis = getattr(ax, f"{which}axis")
    getattr(ax, f"set_{which}scale")("log")
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 1.0
    if decades < 0.5:
        axis.set_major_locator(MaxNLocator(5))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1,), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: format_scientific(x) if flops else format_short(x)))


def thin_points(x: Sequence[float], y: Sequence[float], most: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` of the points, half of them even in log x (x > 0), half in x; the first and the last are kept.

    Points are dropped, never averaged: every drawn point was measured.
    """
    at, value = np.asarray(x, float), np.asarray(y, float)
    if len(at) <= most:
        return at, value
    along = np.log(at) if at.min() > 0 else at
    wanted = np.linspace(along[0], along[-1], most // 2)
    places = np.concatenate([np.searchsorted(along, wanted), np.linspace(0, len(at) - 1, most // 2)])
    places = np.unique(np.clip(places, 0, len(at) - 1).astype(int))
    return at[places], value[places]


def set_paper_type(fig: Figure) -> None:
    """Set all text of a figure in the size that papers want."""
    for text in fig.findobj(Text):
        text.set_fontsize(PAPER_POINTS)


@contextlib.contextmanager
def _without_layout_tables() -> Iterator[None]:
    """Embed fonts in PDFs without the tables that only typesetting reads: two thirds of the time of a font's subset."""
    from fontTools import subset  # imported when a PDF is written, as in matplotlib

    known = getattr(subset.Options, "_drop_tables_default", None)
    if known is None:  # an unknown fontTools: the subset stays large and slow
        yield
        return
    subset.Options._drop_tables_default = [*known, "GSUB", "GPOS", "GDEF", "MATH"]
    try:
        yield
    finally:
        subset.Options._drop_tables_default = known


@styled
def write_pdf_and_csv(folder: str | os.PathLike[str], name: str, fig: Figure, rows: Sequence[dict]) -> list[str]:
    """Write `folder/name.pdf`, and `folder/name.csv` with the numbers behind it; returns both paths."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pdf, table = folder / f"{name}.pdf", folder / f"{name}.csv"
    with _without_layout_tables():
        save_figure(pdf, fig, metadata={"CreationDate": None, "Creator": "scalelab"})
    fig.set_layout_engine(None)  # the engine has done its work; "none" would leave one that draws every figure twice
    replace_file(table, csv_text(rows))
    return [str(pdf), str(table)]


@styled
def write_figure(path: str | os.PathLike[str], fig: Figure, rows: Sequence[dict]) -> list[str]:
    """Write a figure to `path`: .pdf with its CSV beside it, or .png; returns the written paths."""
    path = pathlib.Path(path)
    if path.suffix not in FIGURE_SUFFIXES:
        raise BadInput(
            f"{path}: a figure is one of {', '.join(FIGURE_SUFFIXES)}{nearest_hint(path.suffix, FIGURE_SUFFIXES)}"
        )
    if path.suffix == ".pdf":
        return write_pdf_and_csv(path.parent, path.stem, fig, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(path, fig, dpi=150, metadata={"Software": "scalelab"})
    return [str(path)]


def save_figure(path: pathlib.Path, fig: Figure, **options: Any) -> None:
    """Draw a figure into a file that then replaces the old one."""
    content = io.BytesIO()
    fig.savefig(content, format=path.suffix.removeprefix("."), **options)
    replace_file(path, content.getvalue())
