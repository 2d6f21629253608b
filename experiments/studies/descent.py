"""Descent by hand: optimizers on a quadratic whose rates are known in closed form.

    python -m experiments.studies.descent [--workdir=DIR] [--quick] [--json[=PATH]]

The loss is x'Hx / 2 with H = diag(1, 30), the smallest case in which one learning rate has to serve two curvatures.
Measured beside closed form: the rate of gradient descent and of heavy-ball momentum, each at its best setting; where
descent diverges; the size of Adam's first steps with and without bias correction; the cycle in which RMSProp ends; and
over how many steps a moving average averages. A few seconds; --quick is the same study. Files go to
experiments/results/, or into the workdir. Rates: Polyak (1964), "Some methods of speeding up the convergence".

    scalelab study descent --workdir=runs/descent
"""

import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from scalelab.experiments.studies import outcome
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, styled

CURVATURES = (1.0, 30.0)
CONDITION = CURVATURES[1] / CURVATURES[0]
START = (10.0, 1.0)
STEPS = 400
BEST_LR = 2 / sum(CURVATURES)  # of gradient descent: both curvatures shrink at one rate
ROOT = math.sqrt(CONDITION)
BEST_BETA = ((ROOT - 1) / (ROOT + 1)) ** 2  # of the heavy ball (Polyak 1964); above it the rate is sqrt(beta)
BEST_BALL_LR = 4 / (math.sqrt(CURVATURES[0]) + math.sqrt(CURVATURES[1])) ** 2
BETA = 0.6  # a little above the best, where the two roots part and the rate shows at once
ADAM = {"b1": 0.9, "b2": 0.999}
TOLERANCE = 0.02  # of each number beside its closed form


def descend(
    rule: optax.GradientTransformation,
    start: Sequence[float] = START,
    steps: int = STEPS,
    curvatures: Sequence[float] = CURVATURES,
) -> np.ndarray:
    """The path [steps + 1, K] of an optimizer on the quadratic."""
    bend = jnp.array(curvatures)

    def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
        x, state = carry
        updates, state = rule.update(bend * x, state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    x = jnp.array(start)
    _, path = jax.lax.scan(step, (x, rule.init(x)), None, length=steps)
    return np.concatenate([np.array([start]), np.asarray(path)])


def measure_rate(path: np.ndarray, first: int, last: int) -> float:
    """The factor by which the distance to the minimum shrinks in a step, over these steps."""
    away = np.linalg.norm(path, axis=1)
    return float((away[last] / away[first]) ** (1 / (last - first)))


def bias_factor(step: int) -> float:
    """Adam's step without bias correction over that with it, for a gradient that stays."""
    return (1 - ADAM["b1"] ** step) / math.sqrt(1 - ADAM["b2"] ** step)


def list_checks() -> list[dict[str, Any]]:
    """One row for each number: what it is, its closed form, and what was measured."""
    zigzag = descend(optax.sgd(BEST_LR), steps=60)
    ball = descend(optax.sgd(BEST_BALL_LR, momentum=BETA), steps=60)
    edge = 2 / CURVATURES[1]
    inside, outside = (descend(optax.sgd(edge * factor), (0.0, 1.0), 200)[-1, 1] for factor in (0.99, 1.01))
    first = {"start": (3.0,), "steps": 1, "curvatures": (1.0,)}
    adam = descend(optax.adam(1e-3, **ADAM), **first)
    raw = descend(optax.chain(_raw_adam(), optax.scale(-1e-3)), **first)
    cycle = descend(optax.rmsprop(1e-2, decay=0.9), (0.5,), 2000, (1.0,))[-2:, 0]
    turns = np.sign(zigzag[1:20, 1] / zigzag[:19, 1])
    rng = np.random.default_rng(0)
    closed_and_measured = {
        "gradient descent, factor a step at LR 2 / (1 + 30)": (
            (CONDITION - 1) / (CONDITION + 1), measure_rate(zigzag, 0, 50)),
        "the sign of its steep direction, step on step (zig-zag)": (-1.0, float(turns.mean())),
        "LR 0.99 times 2 / 30: factor of the steep direction over 200 steps": (0.98**200, float(abs(inside))),
        "LR 1.01 times 2 / 30": (1.02**200, float(abs(outside))),
        "heavy ball with momentum 0.6, factor a step": (math.sqrt(BETA), measure_rate(ball, 5, 55)),
        "Adam, first step / LR": (1.0, float((adam[0, 0] - adam[1, 0]) / 1e-3)),
        "without bias correction": (bias_factor(1), float((raw[0, 0] - raw[1, 0]) / 1e-3)),
        "RMSProp's last cycle: distance from the minimum / LR": (0.5, float(np.abs(cycle).mean() / 1e-2)),
        "moving average with 0.9 of noise: variance left": (0.1 / 1.9, _averaged_variance(0.9, rng)),
        "with 0.99": (0.01 / 1.99, _averaged_variance(0.99, rng)),
    }  # fmt: skip
    return [
        outcome.compare_with(
            closed, "closed form", name, measured, closed - TOLERANCE * abs(closed), closed + TOLERANCE * abs(closed)
        )
        for name, (closed, measured) in closed_and_measured.items()
    ]


def _raw_adam() -> optax.GradientTransformation:
    """Adam's direction without bias correction."""

    def update(g: Any, state: Any, params: Any = None) -> Any:
        m = ADAM["b1"] * state[0] + (1 - ADAM["b1"]) * g
        v = ADAM["b2"] * state[1] + (1 - ADAM["b2"]) * g**2
        return m / (jnp.sqrt(v) + 1e-8), (m, v)

    return optax.GradientTransformation(lambda x: (jnp.zeros_like(x), jnp.zeros_like(x)), update)


def _averaged_variance(beta: float, rng: np.random.Generator, steps: int = 400_000) -> float:
    """The variance of a moving average of noise of variance 1: (1 - beta) / (1 + beta)."""
    from scipy.signal import lfilter

    averaged = lfilter([1 - beta], [1, -beta], rng.standard_normal(steps))
    return float(averaged[steps // 100 :].var())


@styled
def plot_paths() -> Figure:
    """Paths of four optimizers over the contours of the loss."""
    fig, ax = make_figure(6.4, 3.4)
    x, y = np.meshgrid(np.linspace(-3, 11, 200), np.linspace(-2.2, 2.2, 200))
    heights = (CURVATURES[0] * x**2 + CURVATURES[1] * y**2) / 2
    ax.contour(x, y, heights, np.geomspace(0.3, 90, 10), colors=MUTED, linewidths=0.5)
    rules = {
        "gradient descent": (optax.sgd(BEST_LR), INK),
        "heavy ball": (optax.sgd(BEST_BALL_LR, momentum=BEST_BETA), ACCENT),
        "RMSProp": (optax.rmsprop(0.3, decay=0.9), "#2f6db3"),
        "Adam": (optax.adam(0.5, b1=0.9, b2=0.999), "#c07f1a"),
    }
    for name, (rule, colour) in rules.items():
        path = descend(rule, steps=40)
        ax.plot(path[:, 0], path[:, 1], "o-", ms=2, lw=1, color=colour, label=name)
    ax.set(xlabel="flat direction", ylabel="steep direction", xlim=(-3, 11), ylim=(-2.2, 2.2), title="forty steps")
    add_axes_legend(fig, ax)
    return fig


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    checks = list_checks()
    farthest = max(abs(row["measured"] / row["known"] - 1) for row in checks)
    return {
        "checks": checks,
        "finding": f"{len(checks)} rates, steps and averages of five optimizers on a quadratic agree with their closed "
        f"forms; the farthest is {farthest:.1%} away.",
        "limits": "a quadratic has no noise and no curvature that changes. Adam and RMSProp are best where each "
        "direction has its own scale along the axes, as here; turned by 45 degrees they lose that.",
    }


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    return [f"The loss is x'Hx / 2 with H = diag(1, {CONDITION:g})."]


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("descent", __doc__, argv, measure, lambda result: plot_paths(), describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
