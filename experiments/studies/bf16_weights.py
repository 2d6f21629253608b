"""Weights in bf16 without an fp32 copy: what rounding to nearest loses, and what stochastic rounding and Kahan restore.

    python -m experiments.studies.bf16_weights [--workdir=DIR] [--quick] [--json[=PATH]]

A small transformer is trained on a random bigram language under four precision policies that differ in the stored
weights alone: fp32 (bf16), bf16 to nearest (bf16_master), stochastically (bf16_stochastic), and to nearest with what
was lost in a second bf16 array (bf16_kahan). Equal seeds have equal first weights and batches, so differences are
paired. Two peak learning rates, each falling along a cosine to zero: at the usual one most updates are larger than half
a bf16 spacing until late in the run; at a tenth of it most never are. Six minutes; --quick: two seeds, fewer steps.
Sources: Gupta et al. 2015, "Deep Learning with Limited Numerical Precision"; Zamirai et al. 2020, "Revisiting BFloat16
Training".

    scalelab study bf16_weights --quick --workdir=runs/bf16_weights
"""

import functools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from scalelab import config as config_lib
from scalelab.cli.parser import print_status
from scalelab.config import Hparams, Static, replace_hparams
from scalelab.configs import tiny
from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies import outcome
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, styled
from scalelab.sweep.answer.differences import mean_difference
from scalelab.train.step import program
from scalelab.train.step.step import evaluation_loss

SEQ_LEN, VOCAB, BATCH = 64, 64, 16
RATES = {"usual": 3e-3, "small": 3e-4}  # peak LRs
STEPS, QUICK_STEPS = 500, 200
SEEDS, QUICK_SEEDS = 5, 2
AT_ONCE = 100  # steps of a dispatch, after each of which the validation loss is measured
LEVEL = 0.95
WEIGHTS = {
    "bf16": "fp32", "bf16_master": "bf16, nearest", "bf16_stochastic": "bf16, stochastic", "bf16_kahan": "bf16, Kahan",
}  # fmt: skip


def build_setting(policy: str, rate: float, steps: int) -> tuple[Static, Hparams]:
    """(static, hparams) of a model of width 32 with two layers; the cosine ends at zero."""
    values = {
        "model.d_model": 32, "model.n_layers": 2, "model.n_heads": 2, "model.seq_len": SEQ_LEN,
        "model.vocab_size": VOCAB, "train.global_batch": BATCH, "train.steps": steps, "precision.name": policy,
        "optim.peak_lr": rate, "schedule.name": "cosine", "schedule.final_share": 0.0, "guard.policy": "off",
    }  # fmt: skip
    config = config_lib.resolve(config_lib.override(tiny.get_config(), values))
    return config_lib.static(config), replace_hparams(config_lib.hparams(config), {"log.every_steps": AT_ONCE})


def draw_language(seed: int) -> np.ndarray:
    """Transition probabilities [V, V], each row drawn from a Dirichlet distribution of concentration 0.1."""
    return np.random.default_rng(seed).dirichlet(np.full(VOCAB, 0.1), VOCAB)


def draw_batches(language: np.ndarray, seed: int, count: int) -> np.ndarray:
    """Sentences of the language, int32 [count, B, S + 1]."""
    random, cumulative = np.random.default_rng(seed), language.cumsum(axis=1)
    tokens = np.empty((SEQ_LEN + 1, count * BATCH), np.int32)
    tokens[0] = random.integers(VOCAB, size=count * BATCH)
    for at in range(SEQ_LEN):
        draws = random.random(count * BATCH)[:, None]
        tokens[at + 1] = np.minimum((cumulative[tokens[at]] < draws).sum(axis=1), VOCAB - 1)
    return tokens.T.reshape(count, BATCH, SEQ_LEN + 1)


def train(policy: str, rate: float, seed: int, steps: int) -> list[float]:
    """Validation losses (nats a token) after every AT_ONCE steps of a run."""
    static, h = build_setting(policy, rate, steps)
    language = draw_language(0)
    batches, held_out = draw_batches(language, 1 + seed, steps), draw_batches(language, 0, 8)
    run = program.sequential_program(static, [replace_hparams(h, {"train.seed": seed})])
    states, losses = run.init(), list[float]()
    for at in range(0, steps, AT_ONCE):
        states, _ = run.advance(states, [batches[at : at + AT_ONCE]], AT_ONCE)
        losses.append(float(_evaluate(static, states[0], held_out, program.traced_hparams(h))))
    return losses


_evaluate = jax.jit(evaluation_loss, static_argnums=0)


def share_unmoved(rate: float) -> float:
    """Share of the first weights that an update of this size leaves where they are in bf16: below half a spacing."""
    static, h = build_setting("bf16", rate, STEPS)
    state = program.sequential_program(static, [h]).init()[0]
    weights = np.concatenate([np.ravel(np.asarray(x, np.float32)) for x in jax.tree.leaves(state.params)])
    moved = np.asarray(jnp.asarray(weights, jnp.bfloat16) + 0.0, np.float32)
    after = np.asarray(jnp.asarray(moved + np.float32(rate), jnp.bfloat16), np.float32)
    return float(np.mean(after == moved))


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    steps, seeds = (QUICK_STEPS, range(QUICK_SEEDS)) if quick else (STEPS, range(SEEDS))
    curves: dict[str, dict[str, Any]] = {}
    for name, rate in RATES.items():
        curves[name] = {}
        for policy in WEIGHTS:
            compute = functools.partial(lambda p, r: [train(p, r, seed, steps) for seed in seeds], policy, rate)
            settings = {"seeds": len(seeds), "steps": steps, "rate": rate}
            curves[name][policy] = outcome.measure_once(folder, f"{name}-{policy}", settings, compute)
            print_status(f"{name} LR, weights in {WEIGHTS[policy]}: {len(seeds)} runs of {steps} steps")
    rows = [compare_policy(curves[name], name, policy) for name in RATES for policy in list(WEIGHTS)[1:]]
    by_key = {(row["rate"], row["policy"]): row for row in rows}
    harm, left = by_key["small", "bf16_master"], by_key["small", "bf16_stochastic"]
    kahan = by_key["small", "bf16_kahan"]
    return {
        "seeds": len(seeds), "steps": steps, "rates": RATES, "curves": curves, "rows": rows,
        "unmoved": {name: share_unmoved(rate) for name, rate in RATES.items()},
        "checks": [
            outcome.compare_with(0, "bf16 holds updates below half a spacing on average (Gupta et al. 2015, sec. 3)",
                                 "share of nearest's harm that stochastic rounding leaves, small LR",
                                 left["mean"] / harm["mean"], -0.1, 0.1),
            outcome.compare_with(0, "16 bits of mantissa (Zamirai et al. 2020, Alg. 3)",
                                 "share of nearest's harm that Kahan leaves, small LR", kahan["mean"] / harm["mean"],
                                 -0.02, 0.02),
        ],
        "finding": f"At a peak LR of {RATES['small']:g} weights kept in bf16 by rounding to nearest end "
        f"{_say(harm)} nats above fp32 weights, rounded stochastically {_say(left)}, with Kahan's compensation "
        f"{_say(kahan)}; at {RATES['usual']:g} {_say(by_key['usual', 'bf16_master'])}, "
        f"{_say(by_key['usual', 'bf16_stochastic'])} and {_say(by_key['usual', 'bf16_kahan'])} "
        f"(mean and {LEVEL:.0%} interval over {len(seeds)} seeds).",
        "limits": "a model of width 32 on a bigram language, AdamW, at most 500 steps. How much nearest loses depends "
        "on the ratio of updates to weights; larger models have smaller rates and smaller weights. Noise of stochastic "
        "rounding adds up over steps, and long runs take hundreds of times as many. Kahan's second array makes the "
        "weights as large as in fp32.",
    }  # fmt: skip


def compare_policy(curves: Mapping[str, Sequence[Sequence[float]]], rate: str, policy: str) -> dict[str, Any]:
    """The last loss under `policy` above that under fp32 weights, paired by seed, with its interval."""
    last = {name: {seed: curve[-1] for seed, curve in enumerate(curves[name])} for name in ("bf16", policy)}
    difference = mean_difference(last[policy], last["bf16"], LEVEL)
    assert difference is not None
    return {"rate": rate, "policy": policy, "loss": float(np.mean(list(last[policy].values()))),
            "fp32": float(np.mean(list(last["bf16"].values()))), **difference._asdict()}  # fmt: skip


def _say(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"


STYLES = {
    "bf16": ("-", INK),
    "bf16_master": ("s--", ACCENT),
    "bf16_stochastic": ("o-", MUTED),
    "bf16_kahan": ("x:", INK),
}


@styled
def plot_losses(result: Mapping[str, Any]) -> Figure:
    """Validation losses over steps at each peak LR, means over seeds."""
    fig, axes = make_figure(8.6, 3.5, 2)
    steps = AT_ONCE * (1 + np.arange(result["steps"] // AT_ONCE))
    for ax, (name, rate) in zip(axes, result["rates"].items(), strict=True):
        for policy, (style, color) in STYLES.items():
            mean = np.mean(result["curves"][name][policy], axis=0)
            ax.plot(steps, mean, style, ms=4, color=color, label=WEIGHTS[policy])
        unmoved = f"{result['unmoved'][name]:.0%} of updates lost"
        ax.set(xlabel="step", ylabel="validation loss, nats a token", title=f"peak LR {rate:g}: {unmoved} at its peak")
        add_axes_legend(fig, ax)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    columns = ("peak LR", "weights", "val loss", "over fp32", f"{LEVEL:.0%} interval", "shows")
    rows = []
    for row in result["rows"]:
        shows = "harm" if row["low"] > 0 else "gain" if row["high"] < 0 else "no difference"
        interval = f"{row['low']:+.4f} to {row['high']:+.4f}"
        rate = f"{result['rates'][row['rate']]:g}"
        rows.append([rate, WEIGHTS[row["policy"]], f"{row['loss']:.4f}", f"{row['mean']:+.4f}", interval, shows])
    return [
        f"Differences of the last validation loss from fp32 weights, paired over {result['seeds']} seeds.", "",
        *markdown_table(columns, rows),
    ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("bf16_weights", __doc__, argv, measure, plot_losses, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
