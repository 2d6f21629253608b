"""A config's schedules as a figure: learning rate, momentum, weight decay and batch over the run."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from scalelab.report.figures.style import format_short, make_figure, styled, value_colours, write_figure

PANELS = (
    ("lr", "learning rate"),
    ("beta1", "momentum (beta1)"),
    ("weight_decay", "weight decay (times LR)"),
    ("batch_tokens", "batch (tokens)"),
    ("seq_len", "sequence (tokens)"),
)


@styled
def plot_schedules(rows: Sequence[dict], marked: Sequence[int] = ()) -> Figure:
    """A panel each over the step. rows: `step` and the keys of PANELS; the rows whose step is in `marked` get a dot."""
    fig, axes = make_figure(13.0, 2.6, len(PANELS))
    for ax, (key, title) in zip(axes, PANELS, strict=True):
        ax.plot([row["step"] for row in rows], [row[key] for row in rows], color=value_colours([0])[0])
        dots = [row for row in rows if row["step"] in set(marked)]
        ax.plot([row["step"] for row in dots], [row[key] for row in dots], "o", color=value_colours([0])[0], ms=3.5)
        ax.set_ylim(0, 1.08 * max(row[key] for row in rows) or 1.0)
        ax.xaxis.set_major_formatter(lambda x, _: format_short(x))
        ax.yaxis.set_major_formatter(lambda y, _: "0" if y == 0 else format_short(y))
        ax.set(xlabel="step", title=title)
    return fig


def write_schedule_figure(path: str, rows: Sequence[dict], marked: Sequence[int] = ()) -> list[str]:
    """Write the figure to `path` (.pdf, with the CSV of its numbers beside it, or .png); returns what was written."""
    return write_figure(path, plot_schedules(rows, marked), rows)
