"""Double descent: the test error peaks where a model can just fit its training set, and falls again beyond.

    python -m experiments.studies.double_descent [--workdir=DIR] [--quick] [--json[=PATH]]

Random features: P features relu(Wx) of n = 100 noisy points, fitted by least squares of least norm. The peak lies at
P = n exactly, where the smallest singular value of the features is nearest to zero; ridge removes it. A network: one
hidden layer of growing width on 200 points of which a fifth have the wrong label, trained to the end; the peak lies
where the training error reaches zero. About a minute; --quick: fewer seeds. Sources: Belkin et al. (2019) for the
peak at interpolation, Nakkiran et al. (2019) for networks and wrong labels.

    scalelab study double_descent --quick --workdir=runs/double_descent
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
from scalelab.report.figures.style import (
    ACCENT,
    INK,
    MUTED,
    add_axes_legend,
    make_figure,
    set_log_axis,
    styled,
)

POINTS, TEST_POINTS, INPUTS, NOISE = 100, 1000, 30, 0.5  # of the regression
FEATURES = (10, 20, 40, 60, 80, 90, 95, 100, 105, 110, 120, 140, 170, 200, 300, 500, 1000)
RIDGES = (0.0, 0.1, 10.0)  # added to the Gram matrix of the features; 10 is near the best
DRAWS, QUICK_DRAWS = 50, 20
WIDTHS = (1, 2, 3, 4, 6, 8, 10, 14, 20, 32, 64, 128, 256)
SAMPLES, DIMENSIONS, FLIPPED = 200, 20, 0.2  # of the classification
STEPS, LR, SEEDS, QUICK_SEEDS = 4000, 3e-3, 10, 4


def feature_errors(features: int, ridge: float, draws: int) -> list[float]:
    """Test errors (mean square, without the noise of the targets) of so many random-feature fits."""
    errors = []
    for seed in range(draws):
        rng = np.random.default_rng([seed, features])
        true = rng.standard_normal(INPUTS) / INPUTS**0.5
        x, test = rng.standard_normal((POINTS, INPUTS)), rng.standard_normal((TEST_POINTS, INPUTS))
        y = x @ true + NOISE * rng.standard_normal(POINTS)
        first = rng.standard_normal((INPUTS, features)) / INPUTS**0.5
        seen, unseen = np.maximum(x @ first, 0), np.maximum(test @ first, 0)
        weights = least_squares(seen, y, ridge)
        errors.append(float(np.mean((unseen @ weights - test @ true) ** 2)))
    return errors


def least_squares(seen: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """Weights [P] of features [n, P]: of least norm without ridge, else the ridge solution."""
    if not ridge:
        return np.linalg.lstsq(seen, y)[0]
    return seen.T @ np.linalg.solve(seen @ seen.T + ridge * np.eye(len(y)), y)


def make_labels(seed: int) -> tuple[np.ndarray, ...]:
    """(points, noisy labels, test points, true labels) of a classification whose classes a plane parts."""
    rng = np.random.default_rng(seed)
    plane = rng.standard_normal(DIMENSIONS)
    x, test = rng.standard_normal((SAMPLES, DIMENSIONS)), rng.standard_normal((5 * SAMPLES, DIMENSIONS))
    y = np.sign(x @ plane)
    y[rng.random(SAMPLES) < FLIPPED] *= -1
    return x, y, test, np.sign(test @ plane)


@functools.partial(jax.jit, static_argnames="width")
def train_network(key: jax.Array, x: jax.Array, y: jax.Array, test: jax.Array, width: int) -> tuple[jax.Array, ...]:
    """(training outputs, test outputs) of a network of one hidden layer after STEPS steps of Adam on squared error."""
    one, two = jax.random.split(key)
    weights = {
        "in": jax.random.normal(one, (DIMENSIONS + 1, width)) / DIMENSIONS**0.5,
        "out": jax.random.normal(two, (width,)) / width**0.5,
    }
    rule = optax.adam(optax.cosine_decay_schedule(LR, STEPS))

    def output(weights: Mapping[str, jax.Array], points: jax.Array) -> jax.Array:
        ones = jnp.ones((len(points), 1))
        return jax.nn.relu(jnp.concatenate([points, ones], axis=1) @ weights["in"]) @ weights["out"]

    def step(carry: Any, _: None) -> tuple[Any, None]:
        weights, state = carry
        grads = jax.grad(lambda w: jnp.mean((output(w, x) - y) ** 2))(weights)
        updates, state = rule.update(grads, state)
        return (optax.apply_updates(weights, updates), state), None

    (weights, _), _ = jax.lax.scan(step, (weights, rule.init(weights)), None, length=STEPS)
    return output(weights, x), output(weights, test)


def network_errors(width: int, seeds: int) -> dict[str, list[float]]:
    """{train, test: the share of wrong labels of each seed} of a width; the test labels have no noise."""
    sets = [np.stack(each) for each in zip(*(make_labels(seed) for seed in range(seeds)), strict=True)]
    x, y, test, true = sets
    keys = jax.random.split(jax.random.key(0), seeds)
    train = jax.vmap(functools.partial(train_network, width=width))
    seen, unseen = train(keys, *(jnp.asarray(each, jnp.float32) for each in (x, y, test)))
    wrong = {"train": np.sign(seen) != y, "test": np.sign(unseen) != true}
    return {name: each.mean(axis=1).tolist() for name, each in wrong.items()}


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Errors of both parts: medians of the features' (one bad draw is huge at the peak), means of the networks'."""
    draws, seeds = (QUICK_DRAWS, QUICK_SEEDS) if quick else (DRAWS, SEEDS)
    features = outcome.measure_once(folder, "features", {"draws": draws}, lambda: _feature_rows(draws))
    networks = [
        outcome.measure_once(folder, f"width{width}", {"seeds": seeds}, lambda: _network_row(width, seeds))  # noqa: B023
        for width in WIDTHS
    ]
    peaks = find_peaks(features, networks)
    return {
        "draws": draws, "seeds": seeds, "features": features, "networks": networks, "peaks": peaks,
        "checks": list_checks(peaks),
        "finding": f"With random features the test error peaks at P = {peaks['features']} for n = {POINTS} points, "
        f"{peaks['over_end']:.3g} times that at P = {FEATURES[-1]}, and ridge removes the peak; a network's peaks at "
        f"width {peaks['width']} ({peaks['test_at_peak']:.0%} wrong, {peaks['test_at_end']:.0%} at {WIDTHS[-1]}).",
        "limits": "one hidden layer, Gaussian inputs, and no early stopping. With less noise in the labels, or a "
        "little regularisation, the peak of the network is gone.",
    }  # fmt: skip


def _feature_rows(draws: int) -> list[dict[str, Any]]:
    rows = []
    for count in FEATURES:
        errors = {f"{ridge:g}": float(np.median(feature_errors(count, ridge, draws))) for ridge in RIDGES}
        rows.append({"features": count, "errors": errors})
    print_status(f"random features: {len(FEATURES)} sizes, {draws} draws each")
    return rows


def _network_row(width: int, seeds: int) -> dict[str, Any]:
    errors = network_errors(width, seeds)
    spread = {name: float(np.std(each, ddof=1) / len(each) ** 0.5) for name, each in errors.items()}
    means = {name: float(np.mean(each)) for name, each in errors.items()}
    print_status(f"width {width}: training {means['train']:.1%} wrong, test {means['test']:.1%}")
    return {"width": width, "parameters": width * (DIMENSIONS + 2), "mean": means, "error": spread}


def find_peaks(features: Sequence[Any], networks: Sequence[Any]) -> dict[str, Any]:
    """Where errors peak, and how high above the end of the curve: features without ridge, and networks."""
    plain = {row["features"]: row["errors"]["0"] for row in features}
    ridged = {row["features"]: row["errors"]["10"] for row in features}
    test = {row["width"]: row["mean"]["test"] for row in networks}
    fitted = next(row["width"] for row in networks if row["mean"]["train"] == 0)
    peak = max(plain, key=lambda each: plain[each])
    inner = max((width for width in test if width > 2), key=lambda each: test[each])
    return {
        "features": peak,
        "over_end": plain[peak] / plain[max(plain)],
        "ridged_at_peak": ridged[peak] / max(ridged[POINTS * 6 // 10], ridged[POINTS * 17 // 10]),
        "width": inner,
        "first_fitted_width": fitted,
        "test_at_peak": test[inner],
        "test_at_end": test[max(test)],
    }


@styled
def plot_errors(result: Mapping[str, Any]) -> Figure:
    """Both curves: random features with three ridges, and the network's training and test error."""
    fig, (left, right) = make_figure(8.6, 3.6, 2)
    for ridge, colour in zip(RIDGES, (ACCENT, "#c07f1a", INK), strict=True):
        rows = result["features"]
        left.plot(
            [row["features"] for row in rows],
            [row["errors"][f"{ridge:g}"] for row in rows],
            "o-",
            ms=3,
            color=colour,
            label=f"ridge {ridge:g}",
        )
    left.axvline(POINTS, color=MUTED, lw=0.8, ls=":")
    set_log_axis(left)
    set_log_axis(left, "y")
    left.set(xlabel="features P", ylabel="test error (mean square)", title=f"random features, n = {POINTS}")
    for name, colour in (("test", ACCENT), ("train", INK)):
        rows = result["networks"]
        right.errorbar(
            [row["width"] for row in rows],
            [row["mean"][name] for row in rows],
            [row["error"][name] for row in rows],
            fmt="o-",
            ms=3,
            color=colour,
            label=name,
        )
    set_log_axis(right)
    right.set(xlabel="hidden units", ylabel="share of wrong labels", title="a network, a fifth of labels wrong")
    for ax in (left, right):
        add_axes_legend(fig, ax)
    return fig


def list_checks(peaks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The numbers that theory or others' work gives."""
    n, theory = POINTS, "least squares of least norm (Belkin et al. 2019)"
    return [
        outcome.compare_with(n, theory, "random features: P at the peak", peaks["features"], 0.95 * n, 1.05 * n),
        outcome.compare_with(1, "at most 1: no peak", "with ridge 10: error there over that at P = 60 or 170",
                             peaks["ridged_at_peak"], 0, 1),
        outcome.compare_with(peaks["first_fitted_width"], "the first width without training errors",
                             "network: width at the peak", peaks["width"],
                             peaks["first_fitted_width"] / 2, peaks["first_fitted_width"]),
    ]  # fmt: skip


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    rows = [
        [str(row["features"]), *(f"{row['errors'][f'{ridge:g}']:.3f}" for ridge in RIDGES)]
        for row in result["features"]
    ]
    nets = [
        [
            str(row["width"]),
            str(row["parameters"]),
            *(f"{row['mean'][name]:.1%} ({row['error'][name]:.1%})" for name in ("train", "test")),
        ]
        for row in result["networks"]
    ]
    return [
        f"Test errors of random features: medians of {result['draws']} draws, without the noise of the targets.",
        "",
        *markdown_table(("features", *(f"ridge {ridge:g}" for ridge in RIDGES)), rows),
        "",
        f"Networks: means (standard errors) over {result['seeds']} seeds. An output of zero counts as wrong, which a "
        "network of width 1 often gives.",
        "",
        *markdown_table(("width", "parameters", "training error", "test error"), nets),
    ]


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("double_descent", __doc__, argv, measure, plot_errors, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
