"""Grokking: a network first memorises a table of modular sums, and generalises long after.

    python -m experiments.studies.grokking [--workdir=DIR] [--quick] [--json[=PATH]]

A network of one hidden layer learns (a + b) mod 97 from 40 % of all pairs by AdamW. With weight decay 1 it fits the
training pairs near step 1,700 and the others near 5,000; without decay it never does; with more data the delay is
gone. And early stopping: where `eval.patience` would have ended these runs, and what they would have known there. Ten
minutes, three seeds; --quick: LR 3e-3, decay 1 and 0, 3,000 steps. Sources: Power et al. (2022); the steps to
compare with were measured independently on this network.

    scalelab study grokking --quick --workdir=runs/grokking
"""

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

from scalelab.cli.parser import print_status
from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies import outcome
from scalelab.report.figures.style import ACCENT, INK, make_figure, set_log_axis, styled
from scalelab.train.run.early_stop import find_stop

MODULUS, EMBED, HIDDEN, BATCH, EVERY, SEEDS = 97, 128, 256, 512, 100, 3
LR, QUICK_LR, WARMUP, BETAS = 1e-3, 3e-3, 10, (0.9, 0.98)
# name: (weight decay, share of pairs trained on, steps)
ARMS = {"decay 1": (1.0, 0.4, 7000), "decay 0.3": (0.3, 0.4, 10_000), "decay 0": (0.0, 0.4, 7000),
        "60 % of pairs": (1.0, 0.6, 3000)}  # fmt: skip
QUICK_ARMS = {"decay 1": (1.0, 0.4, 3000), "decay 0": (0.0, 0.4, 3000)}
MEMORISED, GENERALISED = 0.99, 0.95  # accuracies on training and on other pairs
PATIENCES = (3, 10, 30)  # evaluations


def make_pairs(key: jax.Array, share: float) -> tuple[jax.Array, jax.Array]:
    """Training and other pairs [n, 2] of a random split of all pairs."""
    numbers = jax.random.permutation(key, MODULUS**2)
    pairs = jnp.stack([numbers // MODULUS, numbers % MODULUS], axis=1)
    count = round(share * MODULUS**2)
    return pairs[:count], pairs[count:]


def init_weights(key: jax.Array) -> dict[str, jax.Array]:
    """Embedding, hidden layer and output of normal numbers, scaled by the fan-in."""
    shapes = {"embed": (MODULUS, EMBED), "hidden": (2 * EMBED, HIDDEN), "out": (HIDDEN, MODULUS)}
    fan_in = {"embed": EMBED, "hidden": 2 * EMBED, "out": HIDDEN}
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape) / fan_in[name] ** 0.5
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def compute_logits(weights: Mapping[str, jax.Array], pairs: jax.Array) -> jax.Array:
    """Logits [n, p] of the sum of each pair."""
    x = weights["embed"][pairs].reshape(len(pairs), -1)
    return jax.nn.relu(x @ weights["hidden"]) @ weights["out"]


def score(weights: Mapping[str, jax.Array], pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(mean loss in nats, accuracy) on pairs."""
    logits, sums = compute_logits(weights, pairs), pairs.sum(axis=1) % MODULUS
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, sums).mean()
    return loss, jnp.mean(jnp.argmax(logits, axis=1) == sums)


@functools.partial(jax.jit, static_argnums=(2, 3))
@functools.partial(jax.vmap, in_axes=(0, None, None, None, None))
def train(key: jax.Array, decay: jax.Array, share: float, steps: int, lr: jax.Array) -> dict[str, jax.Array]:
    """Losses and accuracies on training and other pairs, after every EVERY steps, for each seed's key."""
    split, start, order = jax.random.split(key, 3)
    seen, others = make_pairs(split, share)
    weights = init_weights(start)
    rule = optax.adamw(optax.linear_schedule(0.0, lr, WARMUP), *BETAS, weight_decay=decay)

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        weights, state = carry
        batch = seen[jax.random.randint(key, (BATCH,), 0, len(seen))]
        updates, state = rule.update(jax.grad(lambda w: score(w, batch)[0])(weights), state, weights)
        return (optax.apply_updates(weights, updates), state), None

    def block(carry: Any, keys: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        carry, _ = jax.lax.scan(step, carry, keys)
        (loss, accuracy), (test_loss, test_accuracy) = score(carry[0], seen), score(carry[0], others)
        return carry, {"loss": loss, "accuracy": accuracy, "test_loss": test_loss, "test_accuracy": test_accuracy}

    keys = jax.random.split(order, steps).reshape(steps // EVERY, EVERY)
    return jax.lax.scan(block, (weights, rule.init(weights)), keys)[1]


def run_arm(arm: tuple[float, float, int], lr: float, seeds: int) -> list[dict[str, Any]]:
    """For each seed its curves, when it memorised and generalised, and what early stopping would have kept."""
    decay, share, steps = arm
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    curves = {name: np.asarray(each) for name, each in train(keys, decay, share, steps, lr).items()}
    return [describe_run({name: each[seed].tolist() for name, each in curves.items()}) for seed in range(seeds)]


def describe_run(curves: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The curves and what they say; steps are None where a level was never reached."""
    stops = {}
    for patience in PATIENCES:
        last = find_stop(curves["test_loss"], patience)
        stops[str(patience)] = (
            None if last is None else {"step": EVERY * (last + 1), "test_accuracy": curves["test_accuracy"][last]}
        )
    return {
        "curves": dict(curves), "stops": stops, "memorised": first_step(curves["accuracy"], MEMORISED),
        "generalised": first_step(curves["test_accuracy"], GENERALISED), "last": curves["test_accuracy"][-1],
    }  # fmt: skip


def first_step(values: Sequence[float], level: float) -> int | None:
    """The step of the first evaluation at or above `level`."""
    return next((EVERY * (i + 1) for i, value in enumerate(values) if value >= level), None)


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    lr, arms = (QUICK_LR, QUICK_ARMS) if quick else (LR, ARMS)
    runs = {}
    for name, arm in arms.items():
        compute = functools.partial(run_arm, arm, lr, SEEDS)
        runs[name] = outcome.measure_once(folder, name, {"arm": arm, "lr": lr, "seeds": SEEDS}, compute)
        print_status(
            f"{name}: memorised at {_steps(runs[name], 'memorised')}, generalised at "
            f"{_steps(runs[name], 'generalised')}"
        )
    first, second = (_mean_step(runs["decay 1"], key) for key in ("memorised", "generalised"))
    impatient = [run["stops"]["10"] for run in runs["decay 1"]]
    known = [stop["test_accuracy"] for stop in impatient if stop]
    return {
        "lr": lr, "runs": runs, "checks": list_checks(runs, quick),
        "finding": f"With decay 1 the training pairs are known at step {first:,.0f}, the others at {second:,.0f}; "
        f"without decay {max(run['last'] for run in runs['decay 0']):.0%} of the others are known at the end. A "
        f"patience of 10 evaluations stops {len(known)} of {SEEDS} runs before they generalise"
        + (f", at {np.mean(known):.0%}." if known else "."),
        "limits": "one small task whose answer has a simple rule, three seeds, one network. Language models see most "
        "tokens once; nothing here says that they grok.",
    }  # fmt: skip


def list_checks(runs: Mapping[str, Any], quick: bool) -> list[dict[str, Any]]:
    """Steps beside those of the independent measurement (ranges: its seeds, widened by a fifth), and accuracies."""
    source, mean = "measured independently, 3 seeds", _mean_step
    known = (700, 1700) if quick else (1733, 5167)
    low, high = (0.8, 1.2)
    ends = ((700, 700), (1700, 1800)) if quick else ((1700, 1800), (4700, 5700))
    checks = [
        outcome.compare_with(
            value,
            source,
            f"decay 1: step at which it has {what}",
            mean(runs["decay 1"], what),
            low * least,
            high * most,
        )
        for value, what, (least, most) in zip(known, ("memorised", "generalised"), ends, strict=True)
    ]
    worst = max(run["last"] for run in runs["decay 0"])
    checks.append(outcome.compare_with(0, source, "decay 0: other pairs known at the end", worst, 0, 0.05))
    if "60 % of pairs" in runs:
        rows = runs["60 % of pairs"]
        delay = mean(rows, "generalised") / mean(rows, "memorised")
        checks.append(
            outcome.compare_with(2300 / 1700, source, "60 % of pairs: generalised over memorised", delay, 1, 1.6)
        )
    return checks


def _mean_step(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean step over seeds; not a number if a seed never got there."""
    return float(np.mean([np.nan if run[key] is None else run[key] for run in runs]))


def _steps(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    return ", ".join("never" if run[key] is None else f"{run[key]:,}" for run in runs)


@styled
def plot_accuracy(result: Mapping[str, Any]) -> Figure:
    """Accuracies of each arm over steps: training dashed, other pairs in full lines, a line a seed."""
    names = list(result["runs"])
    fig, axes = make_figure(2.6 * len(names), 3.1, len(names))
    for ax, name in zip(axes, names, strict=True):
        for i, run in enumerate(result["runs"][name]):
            steps = EVERY * np.arange(1, len(run["curves"]["accuracy"]) + 1)
            for key, style, colour, label in (
                ("accuracy", "--", INK, "training pairs"),
                ("test_accuracy", "-", ACCENT, "other pairs"),
            ):
                ax.plot(steps, run["curves"][key], style, color=colour, lw=1, label=label if not i else None)
            if stop := run["stops"]["10"]:
                ax.plot(
                    stop["step"],
                    stop["test_accuracy"],
                    "v",
                    color=ACCENT,
                    ms=6,
                    mec="white",
                    label="patience 10 stops" if not i else None,
                )
        set_log_axis(ax)
        ax.set(xlabel="step", ylim=(-0.03, 1.05), title=name)
    axes[0].set(ylabel="accuracy")
    axes[0].legend(loc="upper left")
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    rows = []
    for name, runs in result["runs"].items():
        stops = [
            ", ".join(
                "no" if stop is None else f"{stop['step']:,} ({stop['test_accuracy']:.0%})"
                for stop in (run["stops"][str(patience)] for run in runs)
            )
            for patience in PATIENCES
        ]
        ends = ", ".join(f"{run['last']:.0%}" for run in runs)
        rows.append([name, _steps(runs, "memorised"), _steps(runs, "generalised"), ends, *stops])
    columns = ("arm", "memorised", "generalised", "known at the end",
               *(f"patience {each} stops at" for each in PATIENCES))  # fmt: skip
    return [f"Steps of each seed, to {EVERY}. Memorised: {MEMORISED:.0%} of the training pairs; generalised: "
            f"{GENERALISED:.0%} of the others. Patience is in evaluations of {EVERY} steps without a lower loss on the "
            "other pairs (`eval.patience`); in brackets the share of other pairs known there.", "",
            *markdown_table(columns, rows)]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("grokking", __doc__, argv, measure, plot_accuracy, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
