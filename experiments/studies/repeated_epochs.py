"""Repeated epochs: what tokens are worth the second, fourth and sixteenth time, beside fresh ones.

    python -m experiments.studies.repeated_epochs [--workdir=DIR] [--quick] [--json[=PATH]]

A transformer of 68k parameters trains on 0.79 million bytes: all fresh, or a half, a quarter, … a 32nd of them repeated
2, 4, … 32 times. Fresh runs of fewer bytes give the loss over fresh data; read backwards, it says how many fresh bytes
a repeated run is worth. Each seed has its own split of documents, its own subset, order and first weights. Three
minutes; --quick: two seeds and fewer runs. Expected: four epochs are nearly as good as fresh data; then the value of a
repetition decays with a constant of R_D* = 15.4 epochs (Muennighoff et al. 2023, "Scaling Data-Constrained Language
Models"), which their runs know only to be above 5.8.

    scalelab study repeated_epochs --quick --workdir=runs/repeated_epochs
"""

import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict
from scipy.optimize import minimize_scalar

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.experiments.shared import markdown_table, train_trials
from scalelab.experiments.studies import outcome
from scalelab.laws.law import forms
from scalelab.plan.budget.lawbook import REPETITION
from scalelab.record import listing
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, set_log_axis, styled

STEPS, SEQUENCES, SEQ_LEN = 768, 16, 64
TOKENS = STEPS * SEQUENCES * SEQ_LEN
EPOCHS, QUICK_EPOCHS = (1, 2, 4, 8, 16, 32), (1, 4, 16)
SHARES = (1 / 8, 1 / 4, 1 / 2)  # of TOKENS: shorter runs on fresh data
SEEDS, QUICK_SEEDS = (0, 1, 2, 3), (0, 1)
R_STAR, R_LEAST = REPETITION[0][0], REPETITION[2][0]  # published; the least that the published runs allow (90 %)
R_MOST = 1e6  # as good as infinite: they set no upper end
SHARED = {
    "model.mlp": "relu2", "model.tied_head": True, "model.seq_len": SEQ_LEN, "train.global_batch": SEQUENCES,
    "optim.beta2": 0.95, "optim.peak_lr": 4e-3, "eval.batches": 64, "train.steps_per_dispatch": 48,
    "guard.policy": "off",
}  # fmt: skip


def make_trial(seed: int, epochs: int, share: float = 1.0) -> ConfigDict:
    """A run over `share` of TOKENS with a warm-up of 5 % and a cosine to its end."""
    config = base.get_config()
    config.model = base.llama(d_model=48, n_layers=2, n_heads=2)
    steps = round(share * STEPS)
    values = {
        "train.steps": steps, "train.seed": seed, "data.split_seed": seed,
        "data.unique_tokens": "" if epochs == 1 else str(TOKENS // epochs),
        "eval.every_steps": steps, "log.every_steps": steps, "checkpoint.every_steps": steps,
    }  # fmt: skip
    return config_lib.resolve(config_lib.override(config, SHARED | values))


def make_trials(seeds: Sequence[int], epochs: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config}: every number of epochs over TOKENS, and the shorter fresh runs."""
    trials = {f"epochs{count}-seed{seed}": make_trial(seed, count) for seed in seeds for count in epochs}
    return trials | {f"fresh{share:g}-seed{seed}": make_trial(seed, 1, share) for seed in seeds for share in SHARES}


def read_losses(folder: pathlib.Path, seeds: Sequence[int], epochs: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """{fresh: {share: losses of the seeds}, repeated: {epochs: losses of the seeds}}."""
    last = lambda name: [listing.read_run(folder / "runs" / f"{name}-seed{seed}")["val_loss"] for seed in seeds]  # noqa: E731
    return {
        "fresh": {f"{share:g}": last("epochs1" if share == 1 else f"fresh{share:g}") for share in (*SHARES, 1)},
        "repeated": {str(count): last(f"epochs{count}") for count in epochs},
    }


def worth_share(loss: float, shares: Sequence[float], fresh: Sequence[float]) -> float:
    """The share of TOKENS that, fresh, gives this loss: linear in logs between fresh runs, and on beyond the last."""
    x, y = np.log(fresh)[::-1], np.log(shares)[::-1]  # losses fall with shares
    i = np.clip(np.searchsorted(x, math.log(loss)), 1, len(x) - 1)
    return float(np.exp(y[i] + (math.log(loss) - x[i]) * (y[i] - y[i - 1]) / (x[i] - x[i - 1])))


def lawful_share(epochs: Sequence[float], r_star: float) -> np.ndarray:
    """D' / D of tokens that were seen so many times, by the library's law (Muennighoff et al. 2023, eq. 5)."""
    with jax.enable_x64(True):
        return np.asarray(forms.effective_data(1.0, 1 / np.asarray(epochs, float), r_star))


def fit_r_star(epochs: Sequence[float], worth: Sequence[float]) -> float:
    """R_D* by least squares of the log of the worth, from 0.1 to R_MOST."""
    miss = lambda log_r: np.sum(np.log(worth / lawful_share(epochs, np.exp(log_r))) ** 2)  # noqa: E731
    return float(np.exp(minimize_scalar(miss, bounds=(math.log(0.1), math.log(R_MOST)), method="bounded").x))


def weigh_epochs(losses: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each number of epochs: loss above fresh data in nats and the worth of its tokens, each (mean, error)."""
    fresh = losses["fresh"]
    shares = [float(share) for share in fresh]
    curves = list(zip(*fresh.values(), strict=True))  # by seed
    rows = []
    for count, repeated in losses["repeated"].items():
        worth = [worth_share(loss, shares, curve) for loss, curve in zip(repeated, curves, strict=True)]
        above = outcome.mean_and_error(np.subtract(repeated, fresh["1"]))
        rows.append({"epochs": int(count), "above": above, "each": worth, "worth": outcome.mean_and_error(worth)})
    return rows


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    seeds, epochs = (QUICK_SEEDS, QUICK_EPOCHS) if quick else (SEEDS, EPOCHS)
    train_trials(folder, make_trials(seeds, epochs))
    losses = read_losses(folder, seeds, epochs)
    rows = weigh_epochs(losses)
    repeated = [row for row in rows if row["epochs"] > 1]
    counts = [row["epochs"] for row in repeated]
    r_star = fit_r_star(counts, [row["worth"][0] for row in repeated])
    by_seed = [fit_r_star(counts, worth) for worth in zip(*(row["each"] for row in repeated), strict=True)]
    apart = [abs(row["worth"][0] - float(lawful_share([row["epochs"]], r_star)[0])) for row in repeated]
    four, sixteen = (next(row for row in rows if row["epochs"] == count) for count in (4, 16))
    source = "Muennighoff et al. 2023, R_D* = 15.4; its runs allow 5.8 or more"
    check = lambda row: outcome.compare_with(  # noqa: E731
        float(lawful_share([row["epochs"]], R_STAR)[0]),
        source,
        f"worth of a token in {row['epochs']} epochs",
        row["worth"][0],
        float(lawful_share([row["epochs"]], R_LEAST)[0]),
        1.05,
    )
    return {
        "seeds": len(seeds), "losses": losses, "rows": rows, "r_star": r_star, "r_star_by_seed": by_seed,
        "checks": [
            check(four), check(sixteen),
            outcome.compare_with(R_STAR, source, "R_D*", r_star, R_LEAST, R_MOST, "epochs"),
        ],
        "finding": f"Four epochs cost {four['above'][0]:.3f} ± {four['above'][1]:.3f} nats against fresh data and are "
        f"worth {four['worth'][0]:.0%} of it, sixteen cost {sixteen['above'][0]:.3f} ± {sixteen['above'][1]:.3f} and "
        f"are worth {sixteen['worth'][0]:.0%}; R_D* is {r_star:.1f} ({min(by_seed):.1f} to {max(by_seed):.1f} over "
        f"seeds; published {R_STAR:.1f}), by a law that is up to {max(apart):.2f} off.",
        "limits": "one size, one batch, one learning rate and one weight decay, on bytes of Python sources. Larger "
        "models repeat worse (the law has a second constant for it, R_N*). The misses say that the decay has another "
        "form here: later, and then steeper. The worth is that of tokens in training, not for a benchmark.",
    }  # fmt: skip


@styled
def plot_worth(result: Mapping[str, Any]) -> Figure:
    """The loss above fresh data over epochs, and the worth of repeated tokens beside the published law."""
    fig, (left, right) = make_figure(8.6, 3.6, 2)
    epochs = [row["epochs"] for row in result["rows"]]
    for ax, key, label in ((left, "above", "measured"), (right, "worth", "measured")):
        means, errors = zip(*(row[key] for row in result["rows"]), strict=True)
        ax.errorbar(epochs, means, errors, fmt="o", color=ACCENT, ms=5, label=label)
        set_log_axis(ax)
        ax.set(xlabel="epochs of the same number of tokens")
    at = np.geomspace(1, max(epochs), 60)
    lines = (
        ("published", R_STAR, "--", INK),
        ("its least", R_LEAST, ":", MUTED),
        ("fitted", result["r_star"], "-", ACCENT),
    )
    for label, r_star, style, colour in lines:
        right.plot(at, lawful_share(at, r_star), style, color=colour, label=f"R_D* = {r_star:.1f}, {label}")
    left.axhline(0, color=MUTED, lw=0.8)
    left.set(ylabel="validation loss above fresh data (nats)", title="what repeating costs")
    right.set(ylabel="worth of a token, in fresh ones", ylim=(0, 1.05), title="what a repeated token is worth")
    add_axes_legend(fig, right)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    rows = []
    for row in result["rows"]:
        law = float(lawful_share([row["epochs"]], R_STAR)[0])
        (above, above_error), (worth, worth_error) = row["above"], row["worth"]
        loss = np.mean(result["losses"]["repeated"][str(row["epochs"])])
        cells = (f"{loss:.4f}", f"{above:+.4f} ({above_error:.4f})", f"{worth:.2f} ({worth_error:.2f})", f"{law:.2f}")
        rows.append([str(row["epochs"]), *cells])
    columns = ("epochs", "loss", "above fresh data", "worth of a token", f"by R_D* = {R_STAR:.1f}")
    return [f"Nats per byte, each over {TOKENS:,} bytes; means (standard errors) over {result['seeds']} seeds, paired "
            "with the fresh run of the seed.", "", *markdown_table(columns, rows)]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("repeated_epochs", __doc__, argv, measure, plot_worth, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
