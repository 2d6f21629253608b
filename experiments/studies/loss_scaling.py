"""Mixed precision: what fp16 loses without a loss scale, and which updates bf16 weights lose.

    python -m experiments.studies.loss_scaling [--workdir=DIR] [--quick] [--json[=PATH]]

The mean over T tokens divides every gradient by T, so that large batches push gradients below the smallest fp16 number.
Measured on a small model: the error of fp16's gradient against fp32's over the loss scale, for several T; and the
scale at which the backward pass overflows. Then the share of weights that a step of AdamW leaves unchanged if they are
stored in bf16, over the learning rate, beside the closed form: an update below half the distance to the next bf16
number is lost (between 1/512 and 1/256 of the weight). Two minutes; --quick: one seed. Source: Micikevicius et al.
(2018), "Mixed Precision Training". What this costs in a run: `scalelab study precision`.

    scalelab study loss_scaling --quick --workdir=runs/loss_scaling
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
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, set_log_axis, styled
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import compute_gradients
from scalelab.train.step.step import train_step

SEQ_LEN, VOCAB = 64, 64
TOKENS = (1024, 8192, 32768)  # of a batch
SCALES = tuple(2.0**power for power in range(0, 33, 3))
RATES = tuple(10.0**power for power in np.arange(-6, -1.9, 0.5))
SEEDS, QUICK_SEEDS = 3, 1
SAFE_SCALE = 2.0**12  # one of SCALES


def build_setting(precision: str, tokens: int = 1024) -> tuple[Static, Hparams]:
    """(static, traced hparams) of configs/tiny.py with one layer, for batches of this many tokens."""
    values = {
        "model.d_model": 32, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": SEQ_LEN,
        "model.vocab_size": VOCAB, "train.global_batch": tokens // SEQ_LEN, "precision.name": precision,
        "schedule.name": "constant", "schedule.warmup_steps": 0, "optim.weight_decay": 0.0,
    }  # fmt: skip
    config = config_lib.resolve(config_lib.override(tiny.get_config(), values))
    hparams = replace_hparams(config_lib.hparams(config), {"log.every_steps": 1})
    return config_lib.static(config), jax.tree.map(jnp.float32, hparams)


def draw_batch(seed: int, tokens: int) -> jax.Array:
    """Walks over the vocabulary, int32 [B, S + 1]."""
    steps = np.random.default_rng(seed).integers(1, 4, (tokens // SEQ_LEN, SEQ_LEN + 1))
    return jnp.asarray(np.cumsum(steps, axis=1) % VOCAB, jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def flat_gradient(static: Static, params: Any, tokens: jax.Array, scale: jax.Array) -> jax.Array:
    """The gradient of the mean loss of a token as one vector, computed under this loss scale."""
    grads = compute_gradients(static, params, tokens, jnp.float32(0), scale)[1]
    return jnp.concatenate([jnp.ravel(each) for each in jax.tree.leaves(grads)])


def gradient_errors(tokens: int, seed: int) -> list[float | None]:
    """Relative error of fp16's gradient for each of SCALES; None where it overflowed."""
    exact, h = build_setting("fp32", tokens)
    half, _ = build_setting("fp16", tokens)
    params = state_lib.init_state(exact, replace_hparams(h, {"train.seed": jnp.uint32(seed)})).params
    batch = draw_batch(seed, tokens)
    reference = flat_gradient(exact, params, batch, jnp.float32(1))
    errors: list[float | None] = []
    for scale in SCALES:
        gradient = flat_gradient(half, params, batch, jnp.float32(scale))
        error = float(jnp.linalg.norm(gradient - reference) / jnp.linalg.norm(reference))
        if not np.isfinite(error):
            break  # larger scales overflow, too
        errors.append(error)
    return errors + [None] * (len(SCALES) - len(errors))


def lost_updates(rate: float, seed: int) -> dict[str, float]:
    """The share of weights that AdamW's first step leaves unchanged in bf16: measured, and in closed form.

    The first step moves each weight by the learning rate, whatever its gradient.
    """
    static, h = build_setting("bf16_master")
    h = replace_hparams(h, {"optim.peak_lr": jnp.float32(rate), "train.seed": jnp.uint32(seed)})
    state = state_lib.init_state(static, h)
    after, _ = _step(static, state, draw_batch(seed, 1024), h)
    before, after = (_flatten(each.params) for each in (state, after))
    return {"measured": float(np.mean(before == after)), "closed_form": float(np.mean(rate < half_spacing(before)))}


_step = jax.jit(train_step, static_argnums=0)


def half_spacing(weights: np.ndarray) -> np.ndarray:
    """Half the distance between bf16 numbers near `weights`: it keeps 8 bits."""
    return 2.0 ** (np.floor(np.log2(np.maximum(np.abs(weights), 1e-30))) - 8)


def _flatten(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(each, np.float32)) for each in jax.tree.leaves(tree)])


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    errors, lost = {}, []
    for tokens in TOKENS:
        compute = functools.partial(lambda t: [gradient_errors(t, seed) for seed in seeds], tokens)
        errors[str(tokens)] = outcome.measure_once(folder, f"errors{tokens}", {"seeds": len(seeds)}, compute)
        print_status(f"gradients of {tokens:,} tokens under {len(SCALES)} loss scales")
    for rate in RATES:
        compute = functools.partial(lambda r: [lost_updates(r, seed) for seed in seeds], rate)
        rows = outcome.measure_once(folder, f"lost{rate:.1e}", {"seeds": len(seeds)}, compute)
        lost.append({"rate": rate} | {key: float(np.mean([row[key] for row in rows])) for key in rows[0]})
    print_status(f"updates lost at {len(RATES)} learning rates")
    largest = np.array(errors[str(TOKENS[-1])], float)
    unscaled, scaled = (float(np.nanmean(largest[:, SCALES.index(scale)])) for scale in (1.0, SAFE_SCALE))
    smallest = float(np.nanmean(np.array(errors[str(TOKENS[0])], float)[:, SCALES.index(SAFE_SCALE)]))
    worst = max(abs(row["measured"] - row["closed_form"]) for row in lost)
    usual = min(lost, key=lambda row: abs(np.log(row["rate"] / 1e-4)))
    return {
        "seeds": len(seeds), "errors": errors, "lost": lost,
        "checks": [
            outcome.compare_with(2.0**-11, "half a unit of fp16's last place",
                                 f"scaled by 2^12, {TOKENS[-1]:,} tokens: error of the gradient", scaled,
                                 2.0**-13, 2.0**-8),
            outcome.compare_with(1, "a scale undoes the division by T", f"scaled: error at {TOKENS[-1]:,} tokens over "
                                 f"that at {TOKENS[0]:,}", scaled / smallest, 0.3, 3),
            outcome.compare_with(0, "closed form: half a bf16 spacing", "share of lost updates, largest difference",
                                 worst, 0, 0.02),
        ],
        "finding": f"Without a loss scale fp16's gradient of {TOKENS[-1]:,} tokens is {unscaled:.1%} off, with one of "
        f"2^12 {scaled:.2%}; stored in bf16, {usual['measured']:.0%} of the weights do not move at a learning rate of "
        f"{usual['rate']:.0e}, as the closed form says to {worst:.1%}.",
        "limits": "one layer at its first weights. Deeper models have smaller gradients further down, late training "
        "smaller ones everywhere. Lost updates are those of the first step, which are all as large as the rate.",
    }  # fmt: skip


@styled
def plot_losses(result: Mapping[str, Any]) -> Figure:
    """Errors of the gradient over the loss scale, and lost updates over the learning rate."""
    fig, (left, right) = make_figure(8.6, 3.5, 2)
    for (tokens, rows), style in zip(
        result["errors"].items(), (("o-", MUTED), ("s--", INK), ("^-.", ACCENT)), strict=True
    ):
        mean = np.array(rows, float).mean(axis=0)  # nan where a seed overflowed
        left.plot(SCALES, mean, style[0], ms=4, color=style[1], label=f"{int(tokens):,} tokens")
    for axis in "xy":
        set_log_axis(left, axis)
    left.set(xlabel="loss scale (a curve ends where fp16 overflows)", ylabel="relative error", title="gradient in fp16")
    rates = [row["rate"] for row in result["lost"]]
    right.plot(rates, [row["closed_form"] for row in result["lost"]], color=INK, label="half a bf16 spacing")
    right.plot(rates, [row["measured"] for row in result["lost"]], "o", color=ACCENT, label="measured")
    set_log_axis(right)
    right.set(xlabel="learning rate", ylabel="share of weights that do not move", title="weights stored in bf16")
    for ax in (left, right):
        add_axes_legend(fig, ax)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    rows = [[f"{row['rate']:.1e}", f"{row['closed_form']:.1%}", f"{row['measured']:.1%}"] for row in result["lost"]]
    columns = ("learning rate", "lost, closed form", "lost, measured")
    return [f"Means over {result['seeds']} seeds.", "", *markdown_table(columns, rows)]


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("loss_scaling", __doc__, argv, measure, plot_losses, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
