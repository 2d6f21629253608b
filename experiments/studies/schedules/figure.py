"""The figure: length and shape of the decay, an unseen curve predicted, curves of several sizes laid on each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalelab.experiments.studies.schedules import arms, law
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, styled

SIZE_STYLES = ((INK, "-"), ("#2f6db3", "--"), ("#c07f1a", "-."), (ACCENT, ":"))


@styled
def plot_result(result: Mapping[str, Any]) -> Figure:
    """Three panels."""
    fig, axes = make_figure(10.5, 3.5, columns=3)
    _plot_decays(fig, axes[0], result)
    _plot_law(fig, axes[1], result)
    _plot_collapse(fig, axes[2], result)
    return fig


def _plot_decays(fig: Figure, ax: Axes, result: Mapping[str, Any]) -> None:
    differences = {name.removesuffix(f" - {arms.STANDARD}"): each for name, each in result["differences"].items()}
    differences[arms.STANDARD] = {"mean": 0.0, "error": 0.0}
    linear = [differences[f"wsd{share}"] for share in arms.SHARES]
    _add_points(ax, arms.SHARES, linear, "o-", INK, "linear decay")
    for shape, marker, place in (("cosine", "s", 18.5), ("sqrt", "^", 21.6)):
        label = f"{shape.replace('sqrt', '1-sqrt')} decay"
        _add_points(ax, [place], [differences[f"{arms.STANDARD}-{shape}"]], marker, ACCENT, label)
    cosine = -result["differences"][f"{arms.STANDARD} - cosine"]["mean"]
    ax.axhline(cosine, color=MUTED, ls="--", label="cosine, best LRs")
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_xticks(arms.SHARES, [str(share) for share in arms.SHARES])
    ax.set(xlabel="decay (% of the run)", ylabel="final loss less that at 20 % (nats)", title="the decay of WSD")
    add_axes_legend(fig, ax)


def _add_points(
    ax: Axes, at: Sequence[float], rows: Sequence[Mapping[str, float]], style: str, colour: str, label: str
) -> None:
    means, errors = ([row[key] for row in rows] for key in ("mean", "error"))
    ax.errorbar(at, means, errors, fmt=style, ms=5, color=colour, capsize=2, label=label)


def _plot_law(fig: Figure, ax: Axes, result: Mapping[str, Any]) -> None:
    rows = {row["arm"]: row for row in result["law"]["rows"]}
    styles = (("constant", MUTED, "s", ":"), ("cosine", "#2f6db3", "^", "--"), (arms.STANDARD, ACCENT, "o", "-"))
    for arm, colour, marker, dash in styles:
        row = rows[arm]
        kind = "fitted" if arm in law.FITTED else "predicted"
        ax.plot(row["steps"], row["measured"], marker, ms=2.5, color=colour)
        ax.plot(row["steps"], row["loss"], dash, color=colour, label=f"{arm}, {kind}")
        ax.plot([], [], marker, ms=3, color=colour, label=f"{arm}, measured")
    late = [row["measured"][len(row["measured"]) // 6] for row in rows.values()]
    ax.set_ylim(min(min(row["measured"]) for row in rows.values()) - 0.03, max(late))
    ax.set(xlabel="step", ylabel="validation loss (nats)", title="multi-power law")
    add_axes_legend(fig, ax)


def _plot_collapse(fig: Figure, ax: Axes, result: Mapping[str, Any]) -> None:
    both = result["collapse"]["irreducible"]
    for (width, curve), (colour, dash) in zip(both["curves"].items(), SIZE_STYLES, strict=False):
        ax.plot(both["shares"], curve, dash, color=colour, label=f"width {width}")
    ax.set(xlabel="share of compute", ylabel="reducible loss / its end", title="collapse over sizes")
    add_axes_legend(fig, ax)
