"""Draw schedules (learning rate, momentum, weight decay and batch over the run) and curves predicted from them."""

import os
import pathlib
from collections.abc import Sequence

from matplotlib.figure import Figure

from scalelab.laws.curves.fit import FittedCurves, Prediction
from scalelab.report.figures.style import ACCENT, INK, MUTED, make_figure, styled, value_colours, write_figure
from scalelab.report.tables import format_short

PANELS = (
    ("lr", "learning rate"),
    ("beta1", "momentum (beta1)"),
    ("weight_decay", "weight decay (times LR)"),
    ("batch_tokens", "batch (tokens)"),
    ("seq_len", "sequence (tokens)"),
)


@styled
def plot_schedules(rows: Sequence[dict], marked: Sequence[int] = ()) -> Figure:
    """Draw a panel over steps for each of PANELS. rows: `step` and the panels' keys; steps in `marked` get a dot."""
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


def write_curve_figure(
    folder: str | os.PathLike[str], fitted: FittedCurves, predictions: Sequence[Prediction]
) -> list[str]:
    """Draw fitted and predicted curves into the folder as curves.png, .pdf and .csv; returns the paths."""
    shown = [fitted.predict(curve) for curve in fitted.curves]
    rows = [
        {"run": each.name, "fitted": each in shown, "step": step, "loss": loss, "low": low, "high": high,
         "measured": None if each.measured is None else each.measured[i]}
        for each in [*shown, *predictions]
        for i, (step, loss, low, high) in enumerate(zip(each.steps, each.loss, each.low, each.high, strict=True))
    ]  # fmt: skip
    fig, stem = plot_curves(shown, predictions, fitted.level), pathlib.Path(folder) / "curves"
    return [path for kind in (".png", ".pdf") for path in write_figure(stem.with_suffix(kind), fig, rows)]


@styled
def plot_curves(fitted: Sequence[Prediction], predicted: Sequence[Prediction], level: float) -> Figure:
    """Draw left the fitted runs, measured (dots) and by the law, then a panel for each of `predicted` with its band."""
    fig, axes = make_figure(4.2 * (1 + len(predicted)), 3.4, 1 + len(predicted))
    axes = axes if len(predicted) else [axes]
    names = [pathlib.Path(each.name).name for each in fitted]
    colours = value_colours(names, "name")
    for name, each in zip(names, fitted, strict=True):
        axes[0].plot(each.steps, each.measured, ".", ms=2.5, color=colours[name])
        axes[0].plot(each.steps, each.loss, color=colours[name], lw=1.0, label=name)
    axes[0].set(title="fitted", xlabel="step", ylabel="loss (nats/token)")
    axes[0].legend(fontsize=6)
    for ax, each in zip(axes[1:], predicted, strict=True):
        ax.fill_between(each.steps, each.low, each.high, color=ACCENT, alpha=0.18, lw=0, label=f"{level:.0%} interval")
        ax.plot(each.steps, each.loss, color=ACCENT, label="predicted")
        ax.plot(each.steps, each.baseline, "--", color=MUTED, lw=1.0, label="power law in steps")
        if each.measured is not None:
            ax.plot(each.steps, each.measured, ".", color=INK, ms=3, label="measured")
        ax.set(title=f"predicted: {pathlib.Path(each.name).name}", xlabel="step")
        ax.legend()
    tops = [each.loss[len(each.loss) // 12] for each in [*fitted, *predicted]]
    lows = [each.low.min() for each in [*fitted, *predicted]]
    for ax in axes:
        ax.set_ylim(min(lows) - 0.02, max(tops) + 0.02)
        ax.xaxis.set_major_formatter(lambda x, _: format_short(x))
    return fig
