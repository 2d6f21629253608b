"""Lottery tickets: weights that magnitude pruning keeps train to full accuracy from their own first values.

    python -m experiments.studies.lottery_ticket [--workdir=DIR] [--quick] [--json[=PATH]]

A network of two hidden layers (300 and 100 units, as LeNet-300-100) learns to tell blurred, shifted and noisy patterns
of 10 x 10 pixels. Each round trains it, removes the third of each layer's weights that ended smallest (a sixth of the
last layer's), and rewinds the rest to their first values. At each sparsity three networks are trained: the ticket (that
mask, the first values), the mask with new random values, and a random mask of as many weights a layer. Two minutes;
--quick: fewer seeds. Expected: tickets keep the whole network's accuracy down to a tenth or fifth of the weights and
beat both others (Frankle & Carbin 2019, "The Lottery Ticket Hypothesis").

    scalelab study lottery_ticket --quick --workdir=runs/lottery_ticket
"""

import itertools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter

from scalelab.cli.parser import print_status
from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies import outcome
from scalelab.report.figures.style import ACCENT, INK, MUTED, add_axes_legend, make_figure, set_log_axis, styled

SIDE, CLASSES, PATTERNS, NOISE = 10, 10, 4, 0.7  # pixels a side, classes, patterns a class, noise over a pattern's size
TRAIN_IMAGES, TEST_IMAGES = 2000, 4000
LAYERS = (SIDE * SIDE, 300, 100, CLASSES)  # hidden layers of LeNet-300-100
PRUNED = (1 / 3, 1 / 3, 1 / 6)  # share of a layer's weights removed in a round
ROUNDS, STEPS, BATCH, LR = 11, 600, 64, 2e-3
SEEDS, QUICK_SEEDS = 6, 3
WORTH = 0.01  # accuracy that counts as lost, of the whole network's
ARMS = {"ticket": "ticket", "new values": "its mask, new values", "random mask": "random mask, first values"}
Weights = list[jax.Array]


def make_images(seed: int) -> tuple[np.ndarray, ...]:
    """(training images, labels, test images, labels): noisy patterns, shifted by up to one pixel each way."""
    rng = np.random.default_rng(seed)
    patterns = gaussian_filter(rng.standard_normal((CLASSES * PATTERNS, SIDE, SIDE)), (0, 1.2, 1.2), mode="wrap")
    patterns /= patterns.std(axis=(1, 2), keepdims=True)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        which = rng.integers(len(patterns), size=count)
        shifts = rng.integers(-1, 2, (count, 2))
        images = np.stack([np.roll(patterns[k], tuple(s), (0, 1)) for k, s in zip(which, shifts, strict=True)])
        images += NOISE * rng.standard_normal(images.shape)
        return images.reshape(count, -1).astype(np.float32), which % CLASSES

    return *draw(TRAIN_IMAGES), *draw(TEST_IMAGES)


def draw_weights(key: jax.Array) -> Weights:
    """Weights [inputs, outputs] of each layer: normal, of variance 2 / inputs (He et al. 2015). No biases."""
    keys = jax.random.split(key, len(LAYERS) - 1)
    return [jax.random.normal(k, s) * (2 / s[0]) ** 0.5 for k, s in zip(keys, itertools.pairwise(LAYERS), strict=True)]


def classify(weights: Weights, images: jax.Array) -> jax.Array:
    """Logits [B, CLASSES]."""
    for layer in weights[:-1]:
        images = jax.nn.relu(images @ layer)
    return images @ weights[-1]


@jax.jit
@jax.vmap
def train_masked(weights: Weights, mask: Weights, images: Sequence[jax.Array], seed: jax.Array) -> Any:
    """(last weights, test accuracy) after STEPS steps of Adam on the weights that the mask keeps, for each seed."""
    x, y, test_x, test_y = images
    rule = optax.adam(LR)
    weights = jax.tree.map(jnp.multiply, weights, mask)

    def loss(weights: Weights, rows: jax.Array) -> jax.Array:
        logits = classify(weights, x[rows])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]).mean()

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        weights, state = carry
        grads = jax.grad(loss)(weights, jax.random.randint(key, (BATCH,), 0, len(y)))
        grads = jax.tree.map(jnp.multiply, grads, mask)
        updates, state = rule.update(grads, state)
        return (optax.apply_updates(weights, updates), state), None

    keys = jax.random.split(jax.random.key(seed), STEPS)
    (weights, _), _ = jax.lax.scan(step, (weights, rule.init(weights)), keys)
    return weights, jnp.mean(classify(weights, test_x).argmax(-1) == test_y)


def prune_smallest(weights: np.ndarray, mask: np.ndarray, share: float) -> np.ndarray:
    """The mask without this share of its weights, those of least magnitude."""
    sizes = np.where(mask > 0, np.abs(weights), np.inf).ravel()
    pruned = mask.copy().ravel()
    pruned[np.argsort(sizes)[: round(share * mask.sum())]] = 0
    return pruned.reshape(mask.shape)


def measure_seeds(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row for each round: the share of weights left, and {arm: test accuracies, one for each seed}."""
    images = [jnp.asarray(np.stack(each)) for each in zip(*map(make_images, seeds), strict=True)]
    order, rows = jnp.array(seeds), []
    start, other = (jax.vmap(lambda s: draw_weights(jax.random.key(s)))(order + first) for first in (1000, 2000))
    mask = [np.ones(each.shape, np.float32) for each in start]
    for round_ in range(ROUNDS):
        rng = np.random.default_rng(round_)
        shuffled = [np.stack([rng.permutation(m.ravel()).reshape(m.shape) for m in layer]) for layer in mask]
        last, ticket = train_masked(start, mask, images, order)
        accuracy = {"ticket": ticket, "new values": train_masked(other, mask, images, order)[1],
                    "random mask": train_masked(start, shuffled, images, order)[1]}  # fmt: skip
        left = sum(float(each[0].sum()) for each in mask) / sum(each[0].size for each in mask)
        rows.append({"left": left} | {arm: np.asarray(each).tolist() for arm, each in accuracy.items()})
        print_status(f"{left:.1%} of the weights: " + ", ".join(f"{a} {np.mean(v):.1%}" for a, v in accuracy.items()))
        mask = [
            np.stack([prune_smallest(w, m, share) for w, m in zip(np.asarray(ends), layer, strict=True)])
            for ends, layer, share in zip(last, mask, PRUNED, strict=True)
        ]
    return rows


def compare_arms(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each round the ticket's accuracy less the whole network's and less the other arms', each (mean, error)."""
    gain = lambda a, b: outcome.mean_and_error(np.subtract(a, b))  # noqa: E731
    return [
        {"left": row["left"], "over whole": gain(row["ticket"], rows[0]["ticket"])}
        | {f"over {arm}": gain(row["ticket"], row[arm]) for arm in ARMS if arm != "ticket"}
        for row in rows
    ]


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    seeds = list(range(QUICK_SEEDS if quick else SEEDS))
    rows = outcome.measure_once(folder, "rounds", {"seeds": seeds}, lambda: measure_seeds(seeds))
    gains = compare_arms(rows)
    smallest = min(row["left"] for row in gains if row["over whole"][0] >= -WORTH)
    tenth = min(gains, key=lambda row: abs(row["left"] - 0.1))
    (new, new_error), (random, random_error) = (100 * np.array(tenth[f"over {arm}"]) for arm in list(ARMS)[1:])
    compare, source = outcome.compare_with, "Frankle & Carbin 2019"
    return {
        "seeds": len(seeds), "rows": rows, "gains": gains,
        "checks": [
            compare(0.2, f"{source}: 10 to 20 % of the size", "least share of weights with which a ticket "
                    f"is at most {WORTH:.0%} less accurate than the whole", smallest, 0, 0.2),
            compare(0, f"no difference; {source}", f"at {tenth['left']:.1%} of the weights: ticket less new values "
                    "(allowed: from 3 standard errors)", new, 3 * new_error, 100, "points"),
            compare(0, f"no difference; {source}", "ticket less random mask (from 3 standard errors)",
                    random, 3 * random_error, 100, "points"),
        ],
        "finding": f"Pruned to {smallest:.0%} of its weights and rewound to their first values, the network is within "
        f"{WORTH:.0%} of the whole one's accuracy ({np.mean(rows[0]['ticket']):.1%}); at {tenth['left']:.1%} the "
        f"ticket is {new:.1f} ± {new_error:.1f} points better than its mask with new values and {random:.1f} ± "
        f"{random_error:.1f} better than a random mask.",
        "limits": "one small network without biases on generated patterns, one learning rate and 600 steps for every "
        "sparsity. Large networks need rewinding to weights of a little later (Frankle et al. 2020), and training of "
        "the whole network comes first: a ticket saves no training here.",
    }  # fmt: skip


@styled
def plot_accuracy(result: Mapping[str, Any]) -> Figure:
    """Test accuracy over the share of weights left, for the three arms."""
    fig, ax = make_figure(5.8, 3.5)
    styles = {"ticket": ("o-", ACCENT), "new values": ("s--", INK), "random mask": ("^:", MUTED)}
    left = [100 * row["left"] for row in result["rows"]]
    for arm, label in ARMS.items():
        means, errors = zip(*(outcome.mean_and_error(100 * np.array(row[arm])) for row in result["rows"]), strict=True)
        style, colour = styles[arm]
        ax.errorbar(left, means, errors, fmt=style, ms=4, color=colour, label=label)
    set_log_axis(ax)
    ax.invert_xaxis()
    ax.set(xlabel="weights left (%)", ylabel="test accuracy (%)", title="networks trained after pruning")
    add_axes_legend(fig, ax)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    cell = lambda pair: f"{100 * pair[0]:+.1f} ({100 * pair[1]:.1f})"  # noqa: E731
    keys = ("over whole", "over new values", "over random mask")
    rows = [
        [f"{gain['left']:.1%}", f"{np.mean(row['ticket']):.1%}", *(cell(gain[key]) for key in keys)]
        for row, gain in zip(result["rows"], result["gains"], strict=True)
    ]
    columns = ("weights left", "ticket's accuracy", *(f"ticket {key}" for key in keys))
    return [f"Differences in points of test accuracy (standard errors over {result['seeds']} seeds, paired: data and "
            "order of batches are a seed's own).", "", *markdown_table(columns, rows)]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("lottery_ticket", __doc__, argv, measure, plot_accuracy, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
