"""Double descent: the test error peaks where a model can just fit its training set, and falls again beyond.

    python -m experiments.double_descent [--workdir=DIR] [--quick] [--json[=PATH]]

Random features: P features relu(Wx) of n = 100 noisy points, fitted by least squares of least norm. The peak lies at
P = n exactly, where the smallest singular value of the features is nearest to zero; ridge removes it. A network: one
hidden layer of growing width on 200 points of which a fifth have the wrong label, trained to the end; the peak lies
where the training error reaches zero. Writes `results/double_descent.{json,md,png}` beside this file. About a minute;
--quick: fewer seeds, into the workdir.

    scalelab study double_descent --quick
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

from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path, print_status
from scalelab.experiments.shared import RESULTS, command_line, markdown_table, result_header, write_result
from scalelab.report.figures.style import (
    ACCENT,
    INK,
    MUTED,
    add_axes_legend,
    make_figure,
    set_log_axis,
    styled,
    write_figure,
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


def measure(quick: bool) -> dict[str, Any]:
    """Errors of both parts: medians of the features' (one bad draw is huge at the peak), means of the networks'."""
    draws, seeds = (QUICK_DRAWS, QUICK_SEEDS) if quick else (DRAWS, SEEDS)
    features = []
    for count in FEATURES:
        errors = {f"{ridge:g}": float(np.median(feature_errors(count, ridge, draws))) for ridge in RIDGES}
        features.append({"features": count, "errors": errors})
    print_status(f"random features: {len(FEATURES)} sizes, {draws} draws each")
    networks = []
    for width in WIDTHS:
        errors = network_errors(width, seeds)
        spread = {name: float(np.std(each, ddof=1) / len(each) ** 0.5) for name, each in errors.items()}
        means = {name: float(np.mean(each)) for name, each in errors.items()}
        networks.append({"width": width, "parameters": width * (DIMENSIONS + 2), "mean": means, "error": spread})
        print_status(f"width {width}: training {means['train']:.1%} wrong, test {means['test']:.1%}")
    return {"draws": draws, "seeds": seeds, "features": features, "networks": networks}


def find_peaks(result: Mapping[str, Any]) -> dict[str, Any]:
    """Where errors peak, and how high above the end of the curve: features without ridge, and networks."""
    plain = {row["features"]: row["errors"]["0"] for row in result["features"]}
    ridged = {row["features"]: row["errors"]["10"] for row in result["features"]}
    test = {row["width"]: row["mean"]["test"] for row in result["networks"]}
    fitted = next(row["width"] for row in result["networks"] if row["mean"]["train"] == 0)
    peak = max(plain, key=lambda each: plain[each])
    inner = max((width for width in test if width > 2), key=lambda each: test[each])
    return {
        "features": peak,
        "over_end": plain[peak] / plain[max(plain)],
        "ridged_at_peak": ridged[peak] / min(ridged.values()),
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
        left.plot([row["features"] for row in rows], [row["errors"][f"{ridge:g}"] for row in rows], "o-", ms=3,
                  color=colour, label=f"ridge {ridge:g}")  # fmt: skip
    left.axvline(POINTS, color=MUTED, lw=0.8, ls=":")
    set_log_axis(left)
    set_log_axis(left, "y")
    left.set(xlabel="features P", ylabel="test error (mean square)", title=f"random features, n = {POINTS}")
    for name, colour in (("test", ACCENT), ("train", INK)):
        rows = result["networks"]
        right.errorbar([row["width"] for row in rows], [row["mean"][name] for row in rows],
                       [row["error"][name] for row in rows], fmt="o-", ms=3, color=colour, label=name)  # fmt: skip
    set_log_axis(right)
    right.set(xlabel="hidden units", ylabel="share of wrong labels", title="a network, a fifth of labels wrong")
    for ax in (left, right):
        add_axes_legend(fig, ax)
    return fig


def make_page(result: Mapping[str, Any]) -> str:
    """The page of the result."""
    peaks = result["peaks"]
    rows = [
        [str(row["features"]), *(f"{row['errors'][f'{ridge:g}']:.3f}" for ridge in RIDGES)]
        for row in result["features"]
    ]
    nets = [
        [str(row["width"]), str(row["parameters"]),
         *(f"{row['mean'][name]:.1%} ({row['error'][name]:.1%})" for name in ("train", "test"))]
        for row in result["networks"]
    ]  # fmt: skip
    return "\n".join(
        [
            "# Double descent",
            "",
            f"`{result['command']}`, {result['date']}, {result['machine']}",
            "",
            "![Test errors over size](double_descent.png)",
            "",
            f"Random features: the test error peaks at P = {peaks['features']} (n = {POINTS}), "
            f"{peaks['over_end']:.3g} times that at P = {FEATURES[-1]}. With ridge 10 it is "
            f"{peaks['ridged_at_peak']:.2f} times its least.",
            f"Medians of {result['draws']} draws, without the noise of the targets.",
            "",
            *markdown_table(("features", *(f"ridge {ridge:g}" for ridge in RIDGES)), rows),
            "",
            f"Networks: training errors are zero from width {peaks['first_fitted_width']} on; the test error is "
            f"{peaks['test_at_peak']:.1%} at width {peaks['width']} and {peaks['test_at_end']:.1%} at {WIDTHS[-1]}.",
            f"Means (standard errors) over {result['seeds']} seeds.",
            "",
            *markdown_table(("width", "parameters", "training error", "test error"), nets),
            "",
            "An output of zero counts as wrong, which a network of width 1 often gives.",
            "",
            "What this cannot tell: one hidden layer, Gaussian inputs, and no early stopping. With less noise in the "
            "labels, or a little regularisation, the peak of the network is gone.",
            "",
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return guarded("double_descent", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("double_descent", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the files go with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, nothing committed")
    options = parser.parse_args(list(argv))
    place = options.workdir or (pathlib.Path("runs/double_descent") if options.quick else RESULTS)
    place.mkdir(parents=True, exist_ok=True)
    result = result_header("double_descent", argv) | measure(options.quick)
    result["peaks"] = find_peaks(result)
    write_figure(place / "double_descent.png", plot_errors(result), [])
    write_result(place, "double_descent", result, make_page(result))
    if options.json != "-":
        print(make_page(result))
    emit_json(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
