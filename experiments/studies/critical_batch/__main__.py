"""Critical batch size: steps against tokens to a loss, beside the noise scale, and the best learning rate.

    python -m experiments.studies.critical_batch [--workdir=DIR] [--quick] [--json[=PATH]]

Three settings. A linear regression whose noise scale is known: does the estimator find it, and what does a mean of
ratios do? SGD on a noisy quadratic in closed form: steps to a loss at the best rate of each batch, and how that rate
grows. A transformer of one block on bytes under Adam: steps to 2.5 nats for batches of 1 to 256 sequences, each at the
best of five rates, three seeds; the noise scale over the run (`scalelab noise`). Seven CPU minutes; --quick: three
batches, three rates, two seeds. Expected: S = S_min (1 + B_crit / B) with B_crit near the noise scale, which rises
(McCandlish et al. 2018, "An empirical model of large-batch training"); below B_crit the best rate grows like B under
SGD, like sqrt(B) under Adam (Malladi et al. 2022, "On the SDEs and scaling rules for adaptive gradient algorithms").

    scalelab study critical_batch --quick --workdir=runs/critical_batch
"""

import functools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.experiments.shared import train_trials
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.critical_batch import figure, page, quadratic, transformer

SIMULATED, RUNS = (8, 64, 512), 64  # batches of the quadratic that are also run with drawn noise
MCCANDLISH = "McCandlish et al. 2018"
SEEDS, QUICK_SEEDS, NOISE_SEEDS = 3, 2, 2


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study: all three settings."""
    regression = outcome.measure_once(folder, "regression", {}, quadratic.measure_regression)
    toy = outcome.measure_once(folder, "quadratic", {"batches": quadratic.BATCHES}, measure_quadratic)
    seeds, races = QUICK_SEEDS if quick else SEEDS, []
    for batch in transformer.QUICK_BATCHES if quick else transformer.BATCHES:
        races.append(transformer.race(folder, batch, seeds, quick))
    noise = {}
    for name, run in (("early", transformer.EARLY), ("long", transformer.LONG)):
        place, n = folder / f"noise_{name}", 1 if quick else NOISE_SEEDS
        train_trials(place, transformer.noise_trials(run, n))
        compute = functools.partial(transformer.measure_along, place, run, n)
        settings = {**run, "seeds": n, "sequences": transformer.NOISE_SEQUENCES}
        noise[name] = outcome.measure_once(folder, f"noise {name}", settings, compute)
    fit = quadratic.fit_hyperbola([one["batch"] for one in races], [one["steps"] for one in races])
    scales = {kind: transformer.average_scale(noise["early"], kind) for kind in ("simple", "adam")}
    result = {"regression": regression, "quadratic": toy, "races": races, "noise": noise, "fit": fit._asdict(),
              "scales": scales, "adam_slope": rate_slope(races, fit.critical)}  # fmt: skip
    return result | {"checks": list_checks(result), "finding": page.describe_finding(result), "limits": LIMITS}


LIMITS = (
    "one small model, one loss and one kind of data. Target, batches and rates were chosen after runs of one seed "
    "each. The target is reached in the first thousand sequences, where the noise scale grows some fiftyfold, and its"
    " mean over steps hangs on how these are weighted. At the same loss the run of the larger batch has the larger "
    "noise scale (compare the tables), so it is not a number of the loss alone. Betas of Adam stay as they are at "
    "every batch, no rate has a warm-up or a decay, and large batches are held back by stability, which the hyperbola"
    " does not know. Batches that are best for a fixed number of tokens follow other laws (Zhang et al. 2024; Bergsma"
    " et al. 2025) and were not measured."
)


def measure_quadratic() -> dict[str, Any]:
    """The best settings of each batch in closed form, some of them simulated, the hyperbola and slopes of the rate."""
    rows = quadratic.best_settings()
    batches, rates = [row["batch"] for row in rows], [row["rate"] for row in rows]
    fit = quadratic.fit_hyperbola(batches, [row["steps"] for row in rows])
    law = 1 / (1 + fit.critical / np.array(batches))  # McCandlish et al. 2018, equation 2.6
    parts = {"small": slice(0, batches.index(8) + 1), "large": slice(batches.index(512), None)}
    return {
        "rows": rows, "fit": fit._asdict(),
        "simulated": {
            str(row["batch"]): quadratic.simulate_loss(row["rate"], int(row["batch"]), int(row["steps"]), RUNS)
            for row in rows if row["batch"] in SIMULATED
        },
        "slopes": {
            name: [quadratic.fit_slope(batches[part], values) for values in (rates[part], law[part])]
            for name, part in parts.items()
        },
    }  # fmt: skip


def rate_slope(races: Sequence[Mapping[str, Any]], critical: float) -> list[float]:
    """(slope of the best rate over the batch, standard error) up to the critical batch, over two batches at least."""
    small = races[: max(2, sum(one["batch"] <= critical for one in races))]
    batches = np.log([one["batch"] for one in small])
    weights = (batches - batches.mean()) / ((batches - batches.mean()) ** 2).sum()
    slope = weights @ np.log([one["rate"] for one in small])
    return [float(slope), float(np.sqrt(weights**2 @ np.array([one["rate_error"] for one in small]) ** 2))]


def list_checks(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Estimator, quadratic and transformer beside closed forms and published rules."""
    compare, regression, toy = outcome.compare_with, result["regression"], result["quadratic"]
    truth, bias, share = quadratic.true_noise_scale(), regression["expected_bias"], quadratic.TARGET_SHARE
    simulated = [
        compare(
            share,
            "closed form",
            f"quadratic, batch {batch}: loss of {RUNS} runs / start",
            loss,
            0.9 * share,
            1.1 * share,
        )
        for batch, (loss, _) in toy["simulated"].items()
    ]
    slopes = [
        compare(
            law,
            f"1/(1 + B_crit/B) ({MCCANDLISH})",
            f"quadratic: slope of the best rate, batches {name}",
            slope,
            law - 0.1,
            law + 0.1,
        )
        for (slope, law), name in zip(toy["slopes"].values(), ("1 to 8", "from 512"), strict=True)
    ]
    ratio = result["fit"]["critical"] / result["scales"]["simple"][0]
    long = [row["simple"]["scale"] for row in result["noise"]["long"]]
    saved = len(transformer.LONG["saved"])
    rise = np.mean(long[saved - 1 :: saved]) / np.mean(long[::saved])
    return [
        compare(truth, "closed form", "regression: noise scale, ratio of averages", regression["ratio_of_averages"],
                0.95 * truth, 1.05 * truth),
        compare(bias, "second order, higher ones add", "regression: bias of the mean of ratios", regression["bias"],
                bias / 2, 3 * bias),
        compare(0.95, "by definition", "regression: 95 % intervals that hold it", regression["coverage"], 0.915, 0.985),
        *simulated,
        compare(0, MCCANDLISH, "quadratic: largest log residual of the hyperbola", toy["fit"]["worst"], 0, 0.15),
        *slopes,
        compare(0, MCCANDLISH, "transformer: largest log residual of the hyperbola", result["fit"]["worst"], 0, 0.2),
        compare(1, f"an order of magnitude ({MCCANDLISH})", "transformer: B_crit / mean noise scale", ratio, 0.1, 10),
        compare(1, f"rises ({MCCANDLISH}): above 1", "transformer: noise scale, step 640 / step 20", rise, 1, 1e4),
        compare(0.5, "Malladi et al. 2022", "transformer: slope of Adam's best rate below B_crit",
                result["adam_slope"][0], 0.25, 0.75),
    ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("critical_batch", __doc__, argv, measure, figure.plot_critical_batch, page.describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
