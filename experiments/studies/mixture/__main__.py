"""Mixtures of training data: which shares of three corpora are best, and does the answer hold for a larger model?

    python -m experiments.studies.mixture [--workdir=DIR] [--quick] [--json[=PATH]]

Transformers of some thousand parameters train on ten mixtures of three corpora of bytes, all from Python's standard
library: its modules (code), the texts of its help (prose) and its tables of encodings. Each domain's validation loss
gets a law c + exp(sum t_j r_j) of the shares (Ye et al. 2024, "Data mixing laws", eq. 1). The shares of the least mean
of the three, within those tried, have an interval by refits to resampled runs. Three mixtures are held out. Before a
model of about 15 times the compute begins, its loss on the best mixture is predicted: by a ladder on the even mixture
and the laws' ratio. Then it trains on the best and on the even mixture. Four seeds; --quick: two, at most 5 minutes on
2 quiet cores. Expected: the laws predict unseen mixtures (Ye et al. 2024), and the best mixture of small models is
better for the larger one.

    scalelab study mixture --quick --workdir=runs/mixture
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scalelab.api.door import train_in_pool
from scalelab.cli.parser import print_status
from scalelab.cli.terminal import Terminal, print_report
from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.mixture import answers, runs
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, styled
from scalelab.sweep.answer.differences import mean_difference

TOLERANCE = 0.03  # of the loss: what a forecast of the quickstart must not exceed either
HELD_SHARE = 0.5  # of the lattice's spread: an error that a useful law stays below
LIMITS = (
    "models of at most 0.1 M parameters on bytes, two blocks, runs of hundreds of steps, three corpora of one library, "
    "validation on the same three. Two seeds, as with --quick, leave a difference of 0.1 nats unseen at the larger "
    "size. Shares are tried from 1/15 to 13/15; the laws say little of a domain that is left out. Each domain's loss "
    "counts alike; another weight has another best mixture. The ratio of losses of two mixtures is taken as equal at "
    "both sizes, and the prediction is scored at one size. Learning rates come from a rule that was made on code."
)


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    seeds = runs.QUICK_SEEDS if quick else runs.SEEDS
    data = runs.write_corpora(folder)
    proxies = runs.make_proxies(data, seeds)
    settings = {"seeds": list(seeds), "lattice": [list(parts) for parts in runs.LATTICE], "larger": list(runs.LARGER)}
    larger_names = [
        runs.name_trial(label, runs.LARGER, s) for label in ("best", runs.label_of(runs.EVEN)) for s in seeds
    ]
    with train_in_pool(folder, next(iter(proxies.values())), False, Terminal(), print_report) as train:
        train(proxies)
        losses = {p: runs.read_losses(folder, runs.label_of(p), runs.PROXY, seeds) for p in runs.LATTICE}
        held = {p: runs.read_losses(folder, runs.label_of(p), runs.PROXY, seeds) for p in runs.HELD_OUT}
        ladder = {s: runs.read_losses(folder, runs.label_of(runs.EVEN), s, seeds) for s in runs.LADDER}
        fits = answers.fit_laws(losses)
        best = answers.find_shares(fits)
        before = [folder / "runs" / name for name in larger_names]
        predict = lambda: answers.predict_larger(fits, answers.fit_ladder(ladder), best.shares)  # noqa: E731
        predicted = outcome.measure_once(folder, "prediction", settings, predict, before)
        low, high = predicted["interval90"]
        print_status(
            f"predicted for {predicted['C']:.3g} FLOPs: {predicted['loss']:.4f}, 90 % in {low:.4f} to {high:.4f}"
        )
        train(runs.make_larger(data, predicted["shares"], seeds))
    larger = {
        "best": runs.read_losses(folder, "best", runs.LARGER, seeds),
        "even": runs.read_losses(folder, runs.label_of(runs.EVEN), runs.LARGER, seeds),
    }
    gap = mean_difference(*(dict(enumerate(larger[arm].mean(1))) for arm in ("best", "even")), answers.LEVEL)
    result = {
        "seeds": len(seeds), "domains": list(runs.DOMAINS),
        "rows": [{"parts": list(p), "losses": each.tolist(), "mean": float(each.mean())} for p, each in losses.items()],
        "held_out": answers.score_held_out(fits, held),
        "laws": {name: fit.params for name, fit in zip(runs.DOMAINS, fits, strict=True)},
        "shares": best.shares.tolist(), "held": {runs.DOMAINS[i]: share for i, share in best.held.items()},
        "intervals": best.intervals.tolist(), "proxy_loss": best.loss,
        "proxy_gain": best.gain, "proxy_gain90": list(best.gain_interval), "predicted": predicted,
        "larger": {arm: each.tolist() for arm, each in larger.items()},
        "measured": float(larger["best"].mean()), "difference": gap._asdict() if gap else None,
    }  # fmt: skip
    return result | {"checks": list_checks(result), "finding": describe_finding(result), "limits": LIMITS}


def list_checks(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Known values beside ours; each can fail."""
    compare, predicted, gap = outcome.compare_with, result["predicted"], result["difference"]
    spread = float(np.std([row["mean"] for row in result["rows"]], ddof=1))
    errors = [abs(row["predicted"] - row["measured"]) for row in result["held_out"]]
    (low, high), shares = predicted["interval90"], np.array(result["intervals"])
    return [
        compare(0, "goal: half of the lattice's standard deviation; Ye et al. 2024 predict unseen mixtures",
                "largest error on a held-out mixture", max(errors), 0, HELD_SHARE * spread, "nats"),
        compare(predicted["loss"], "mixing laws and ladder, before the run; 90 % interval",
                f"mean loss of the larger run on the best mixture, {predicted['C']:.2g} FLOPs", result["measured"], low,
                high, "nats"),
        compare(0, "goal", "error of the prediction", result["measured"] / predicted["loss"] - 1, -TOLERANCE,
                TOLERANCE),
        compare(0, "sign: Ye et al. 2024; upper end of a 90 % interval", "larger run: best mixture less the even one",
                gap["high"] if gap else float("nan"), -1, 0, "nats"),
        compare(0, "goal: no domain at the end of what was tried, as every one is validated on",
                "domains that are held there", len(result["held"]), 0, 0),
        compare(0.5, "goal: a share is told to within half the simplex", "widest interval of a best share",
                float((shares[:, 1] - shares[:, 0]).max()), 0, 0.5),
    ]  # fmt: skip


def describe_finding(result: Mapping[str, Any]) -> str:
    """One sentence with the numbers."""
    predicted, gap = result["predicted"], result["difference"]
    low, high = predicted["interval90"]
    place = "inside" if low <= result["measured"] <= high else "outside"
    shares = ", ".join(
        f"{name} {share:.2f} ({a:.2f} to {b:.2f})"
        for name, share, (a, b) in zip(result["domains"], result["shares"], result["intervals"], strict=True)
    )
    times = runs.count_flops(runs.LARGER) / runs.count_flops(runs.PROXY)
    against = f"{gap['mean']:+.3f} ({gap['low']:+.3f} to {gap['high']:+.3f})" if gap else "not known"
    return (
        f"The best shares by laws of {len(result['rows'])} mixtures are {shares} (90 %); a model of {times:.0f} times "
        f"the compute was predicted at {predicted['loss']:.3f} nats ({low:.3f} to {high:.3f}) there and reached "
        f"{result['measured']:.3f}, {place} of it; it differs from the even mixture's by {against} nats."
    )


@styled
def plot_mixtures(result: Mapping[str, Any]) -> Figure:
    """Mean losses over the simplex of shares with the best one, and predicted beside measured losses."""
    fig, (left, right) = make_figure(9.0, 3.8, 2)
    place = lambda shares: (shares[1] + shares[2] / 2, shares[2] * 3**0.5 / 2)  # noqa: E731  # of an equilateral triangle
    left.plot([0, 1, 0.5, 0], [0, 0, 3**0.5 / 2, 0], color=MUTED, lw=1)
    points = np.array([place(np.array(row["parts"]) / runs.PARTS) for row in result["rows"]])
    drawn = left.scatter(*points.T, c=[row["mean"] for row in result["rows"]], s=70, cmap="viridis_r")
    fig.colorbar(drawn, ax=left, label="mean validation loss (nats/byte)")
    left.plot(*place(result["shares"]), "*", ms=14, color=ACCENT, label="best by the laws")
    for name, corner, align in zip(
        result["domains"], ((0, -0.06), (1, -0.06), (0.5, 0.9)), ("left", "right", "center"), strict=True
    ):
        left.text(*corner, name, ha=align)
    left.axis("off")
    add_axes_legend(fig, left, fontsize=7)
    held, predicted = result["held_out"], result["predicted"]
    right.plot([row["measured"] for row in held], [row["predicted"] for row in held], "o", color=INK, label="held out")
    right.vlines(result["measured"], *predicted["interval90"], color=ACCENT, lw=1.5)
    right.plot(result["measured"], predicted["loss"], "*", ms=11, color=ACCENT, label="larger run, before")
    ends = [min(right.get_xlim()[0], right.get_ylim()[0]), max(right.get_xlim()[1], right.get_ylim()[1])]
    right.plot(ends, ends, color=MUTED, lw=1)
    right.set(xlabel="measured mean loss (nats/byte)", ylabel="predicted")
    add_axes_legend(fig, right, fontsize=7)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    head = ("shares (fifteenths)", *result["domains"], "mean")
    rows = [
        [
            " : ".join(map(str, row["parts"])),
            *(f"{x:.3f}" for x in np.mean(row["losses"], axis=0)),
            f"{row['mean']:.4f}",
        ]
        for row in result["rows"]
    ]
    laws = [[name, *(f"{value:.3g}" for value in params.values())] for name, params in result["laws"].items()]
    held = [
        [" : ".join(map(str, row["parts"])), f"{row['predicted']:.4f}", f"{row['measured']:.4f}"]
        for row in result["held_out"]
    ]
    least, most = result["proxy_gain90"]
    return [
        f"Validation losses at the small size, means of {result['seeds']} seeds.", "", *markdown_table(head, rows), "",
        "Mixing laws.", "", *markdown_table(("loss of", "c", *(f"t {name}" for name in result["domains"])), laws), "",
        "Mixtures that no law has seen.", "", *markdown_table(("shares", "predicted", "measured"), held), "",
        f"At the small size the best shares gain {result['proxy_gain']:.4f} nats ({least:.4f} to {most:.4f}) over the "
        "best mixture of the lattice, by the laws.", "",
        *(line for name, share in result["held"].items() for line in (
            f"By the laws alone the share of {name} would be {share:.3f}: it is held where the tried ones end.", "")),
        f"Ladder: {runs.RULE.text()}.",
    ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("mixture", __doc__, argv, measure, plot_mixtures, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
