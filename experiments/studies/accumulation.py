"""Gradient accumulation: it equals the big batch if micro-batches are weighted by their tokens.

    python -m experiments.studies.accumulation [--workdir=DIR] [--quick] [--json[=PATH]]

A batch of 16 sequences of uneven length is split into K micro-batches. Measured at fixed weights: the gradient of the
library's sum over micro-batches, weighted by tokens, and of the mean of their means, both against that of the whole
batch. Then 60 steps of SGD and of AdamW in which somebody forgot to divide by K. Half a minute; --quick: two seeds.
Expected: equal to rounding; a mean of means is off by per cents (transformers issue 34191); SGD moves K times as far,
AdamW as far as before (it divides by the gradient's size), but for a clip.

    scalelab study accumulation --quick --workdir=runs/accumulation
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from scalelab import config as config_lib
from scalelab.cli.parser import print_status
from scalelab.config import Hparams, Static, replace_hparams
from scalelab.configs import tiny
from scalelab.experiments.studies import outcome
from scalelab.optim.chain import build_optimizer_chain
from scalelab.report.figures.style import ACCENT, INK, add_axes_legend, make_figure, set_log_axis, styled
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import compute_gradients

BATCH, SEQ_LEN, VOCAB = 16, 64, 64
SPLITS = (2, 4, 8, 16)
FORGOTTEN, STEPS = 8, 60  # micro-batches whose number is forgotten, and for how many steps
SEEDS, QUICK_SEEDS = 5, 2
ROUNDING = 1e-5  # relative; fp32 sums in another order differ by about 1e-6
ARMS = {"SGD": ("sgd", 1e9), "AdamW": ("adamw", 1e9), "AdamW, clip 1": ("adamw", 1.0)}


def build_setting(optimizer: str = "adamw", clip_norm: float = 1.0) -> tuple[Static, Hparams]:
    """(static, traced hparams) of configs/tiny.py with one layer, a constant learning rate and this optimizer."""
    values = {
        "model.d_model": 32, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": SEQ_LEN,
        "model.vocab_size": VOCAB, "train.global_batch": BATCH, "optim.name": optimizer, "optim.clip_norm": clip_norm,
        "optim.peak_lr": 0.1 if optimizer == "sgd" else 3e-3, "schedule.name": "constant", "schedule.warmup_steps": 0,
        "optim.weight_decay": 0.0,
    }  # fmt: skip
    config = config_lib.resolve(config_lib.override(tiny.get_config(), values))
    return config_lib.static(config), jax.tree.map(jnp.float32, config_lib.hparams(config))


def draw_batch(seed: int) -> np.ndarray:
    """Sequences [B, S + 1] of uneven length, of a walk over the vocabulary; -1 is neither read nor predicted."""
    rng = np.random.default_rng(seed)
    tokens = np.cumsum(rng.integers(1, 4, (BATCH, SEQ_LEN + 1)), axis=1) % VOCAB
    lengths = np.exp(rng.uniform(np.log(4), np.log(SEQ_LEN), BATCH)).astype(int)
    tokens[np.arange(SEQ_LEN + 1) > lengths[:, None]] = -1
    return tokens.astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def mean_gradient(static: Static, params: Any, tokens: jax.Array) -> Any:
    """The gradient of the mean loss of a token, over `static.accumulate` micro-batches."""
    return compute_gradients(static, params, tokens, jnp.float32(0))[1]


def mean_of_means(static: Static, params: Any, tokens: np.ndarray, parts: int) -> Any:
    """The mean of the micro-batches' own mean gradients, which weights tokens of short micro-batches more."""
    split = tokens.reshape(BATCH // parts, parts, -1).swapaxes(0, 1)  # row r belongs to micro-batch r % parts
    grads = [mean_gradient(static, params, part) for part in split]
    return jax.tree.map(lambda *each: sum(each) / parts, *grads)


def relative_distance(tree: Any, reference: Any) -> float:
    """||tree - reference|| / ||reference||."""
    difference = jax.tree.map(lambda a, b: a - b, tree, reference)
    return float(optax.tree.norm(difference) / optax.tree.norm(reference))


def split_errors(seed: int) -> list[dict[str, float]]:
    """For each number of micro-batches the relative errors of both ways of adding them."""
    static, h = build_setting()
    params = state_lib.init_state(static, replace_hparams(h, {"train.seed": jnp.uint32(seed)})).params
    tokens = draw_batch(seed)
    whole = mean_gradient(static, params, tokens)
    rows = []
    for parts in SPLITS:
        summed = mean_gradient(dataclasses.replace(static, accumulate=parts), params, tokens)
        means = mean_of_means(static, params, tokens, parts)
        rows.append(
            {
                "parts": parts,
                "by_tokens": relative_distance(summed, whole),
                "mean_of_means": relative_distance(means, whole),
            }
        )
    return rows


@functools.partial(jax.jit, static_argnums=0)
def train_steps(static: Static, h: Hparams, factor: jax.Array, batches: jax.Array) -> Any:
    """Parameters before, after one step and after all `batches`, with gradients times `factor`."""
    state = state_lib.init_state(static, h)
    chain = build_optimizer_chain(static, h, h.optim.peak_lr)

    def step(carry: Any, tokens: jax.Array) -> tuple[Any, Any]:
        params, opt_state = carry
        grads = jax.tree.map(lambda g: factor * g, compute_gradients(static, params, tokens, jnp.float32(0))[1])
        updates, opt_state = chain.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    first, _ = step((state.params, state.opt_state), batches[0])
    last, _ = jax.lax.scan(step, first, batches[1:])
    return state.params, first[0], last[0]


def forgotten_division(arm: str, seed: int) -> dict[str, float]:
    """How far the first step goes with the division forgotten, over without; and how far apart 60 steps end."""
    static, h = build_setting(*ARMS[arm])
    h = replace_hparams(h, {"train.seed": jnp.uint32(seed)})
    batches = jnp.asarray([draw_batch(1000 * seed + i) for i in range(STEPS)])
    start, first, last = train_steps(static, h, jnp.float32(1), batches)
    _, far_first, far_last = train_steps(static, h, jnp.float32(FORGOTTEN), batches)
    moved = [optax.tree.norm(jax.tree.map(lambda a, b: a - b, each, start)) for each in (far_first, first)]
    return {"first_step": float(moved[0] / moved[1]), "apart": relative_distance(far_last, last)}


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    seeds = QUICK_SEEDS if quick else SEEDS
    errors = outcome.measure_once(folder, "errors", {"seeds": seeds}, lambda: [split_errors(s) for s in range(seeds)])
    print_status(f"micro-batches: {seeds} seeds")
    arms = {}
    for arm in ARMS:
        compute = functools.partial(lambda name: [forgotten_division(name, s) for s in range(seeds)], arm)
        arms[arm] = outcome.measure_once(folder, f"forgotten {arm}", {"seeds": seeds}, compute)
        print_status(f"division forgotten: {arm}")
    worst = max(row["by_tokens"] for rows in errors for row in rows)
    means = float(np.mean([row["mean_of_means"] for rows in errors for row in rows]))
    first = {arm: float(np.mean([row["first_step"] for row in rows])) for arm, rows in arms.items()}
    apart = {arm: float(np.mean([row["apart"] for row in rows])) for arm, rows in arms.items()}
    compare = outcome.compare_with
    return {
        "seeds": seeds, "errors": errors, "arms": arms, "apart": apart,
        "checks": [
            compare(0, "exact arithmetic", "weighted by tokens: largest error of the gradient", worst, 0, ROUNDING),
            compare(FORGOTTEN, "closed form: K", "SGD, 1/K forgotten: first step over the right one", first["SGD"],
                    0.999 * FORGOTTEN, 1.001 * FORGOTTEN),
            compare(1, "closed form, eps aside", "AdamW, 1/K forgotten: first step", first["AdamW"], 0.99, 1.01),
            compare(0, "closed form, eps aside", f"AdamW: weights apart after {STEPS} steps", apart["AdamW"], 0, 1e-2),
        ],
        "finding": f"Weighted by tokens, up to 16 micro-batches give the gradient of the whole batch to {worst:.0e}; a "
        f"mean of means is {means:.0%} off. With 1/K forgotten SGD steps {first['SGD']:.1f} times as far, AdamW "
        f"{first['AdamW']:.2f} times; a clip at 1 turns AdamW's {apart['AdamW']:.1e} between weights into "
        f"{apart['AdamW, clip 1']:.1e}.",
        "limits": "one small layer at its first weights, and lengths from 4 to 64 tokens, evenly in the logarithm. The "
        "nearer lengths are to each other, the smaller the error of a mean of means; where all are equal it is zero.",
    }  # fmt: skip


@styled
def plot_errors(result: Mapping[str, Any]) -> Figure:
    """Error of the gradient over the number of micro-batches, for both ways of adding them."""
    fig, ax = make_figure(5.6, 3.4)
    styles = {"mean_of_means": ("mean of means", ACCENT, "s--"), "by_tokens": ("weighted by tokens", INK, "o-")}
    for key, (label, colour, style) in styles.items():
        each = np.array([[row[key] for row in rows] for rows in result["errors"]])
        ax.plot(SPLITS, each.T, style[0], ms=3, color=colour, alpha=0.35)
        ax.plot(SPLITS, np.exp(np.log(each).mean(axis=0)), style, color=colour, label=label)
    set_log_axis(ax)
    set_log_axis(ax, "y")
    ax.set(xlabel="micro-batches K", ylabel="relative error of the gradient", title="against the whole batch")
    add_axes_legend(fig, ax)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    return [
        f"Means over {result['seeds']} seeds; points are seeds, lines their geometric means. Weights apart: "
        f"relative distance after {STEPS} steps with and without the division."
    ]


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("accumulation", __doc__, argv, measure, plot_errors, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
