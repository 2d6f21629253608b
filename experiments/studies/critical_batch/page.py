"""The words of the study: its finding, and the tables of its page."""

from collections.abc import Mapping
from typing import Any

from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies.critical_batch import quadratic, transformer

KINDS = ("simple", "adam")


def describe_finding(result: Mapping[str, Any]) -> str:
    """One sentence with the critical batch, the noise scales, the slopes and the estimator."""
    fit, scales, regression = result["fit"], result["scales"], result["regression"]
    length, (slope, error) = transformer.SEQ_LEN, result["adam_slope"]
    sgd = result["quadratic"]["slopes"]["small"][0]
    return (
        f"A transformer of one block takes {fit['steps']:.0f} (1 + {fit['critical']:.0f}/B) steps to "
        f"{transformer.TARGET} nats, so B_crit is {fit['critical'] * length:,.0f} tokens (standard error "
        f"{fit['errors'][1]:.0%}; no batch is more than {fit['worst']:.0%} off); the mean noise scale on the way is "
        f"{scales['simple'][0] / fit['critical']:.1f} times that, in Adam's coordinates "
        f"{scales['adam'][0] / fit['critical']:.1f} times. Below B_crit the best rate grows like B^{slope:.2f} "
        f"(standard error {error:.2f}; the square root is 0.50) under Adam, and like B^{sgd:.2f} under SGD on a "
        f"quadratic. A mean of ratios estimates the noise scale {regression['bias']:.0%} "
        f"too large, the ratio of means {_percent_off(regression):+.0%}."
    )


def _percent_off(regression: Mapping[str, Any]) -> float:
    return regression["ratio_of_averages"] / quadratic.true_noise_scale() - 1


def describe(result: Mapping[str, Any]) -> list[str]:
    """Tables of the transformer's batches, of its noise scale, and of the quadratic's batches."""
    fit, toy = result["fit"], result["quadratic"]
    races = [
        [str(one["batch"]), f"{one['steps']:.0f}", f"{one['steps_error']:.1%}", f"{one['steps'] * one['batch']:,.0f}",
         f"{fit['steps'] * (1 + fit['critical'] / one['batch']):.0f}", f"{one['rate']:.4f}", f"{one['rate_error']:.0%}",
         "yes" if one["inside"] else "no"]
        for one in result["races"]
    ]  # fmt: skip
    noise = [
        [name, str(row["seed"]), str(row["step"]), f"{row['loss']:.3f}", *(_scale_cell(row[k]) for k in KINDS)]
        for name, rows in result["noise"].items()
        for row in rows
    ]
    toys = [
        [
            f"{row['batch']:g}",
            f"{row['steps']:.0f}",
            f"{toy['fit']['steps'] * (1 + toy['fit']['critical'] / row['batch']):.0f}",
            f"{row['rate']:.3f}",
        ]
        for row in toy["rows"]
    ]
    early, long, n = transformer.EARLY, transformer.LONG, transformer.NOISE_SEQUENCES
    columns = ("batch", "steps", "error", "sequences", "hyperbola", "best rate", "error", "inside")
    return [
        f"Transformer: the best rate of each batch (in sequences of {transformer.SEQ_LEN} tokens), vertices of "
        "parabolas in the logarithms; errors are standard errors over seeds, relative.", "",
        *markdown_table(columns, races), "",
        f"Noise scale in sequences with 95 % interval: batch {early['batch']} at a rate of {early['rate']:g} (early: "
        f"its mean is compared with B_crit) and batch {long['batch']} at {long['rate']:g} (long); on the {n} sequences "
        "that follow each step.", "",
        *markdown_table(("run", "seed", "step", "loss", "simple", "in Adam's coordinates"), noise), "",
        f"Noisy quadratic, closed form; B_crit {toy['fit']['critical']:.1f}, S_min {toy['fit']['steps']:.0f}.", "",
        *markdown_table(("batch", "steps", "hyperbola", "best rate"), toys),
    ]  # fmt: skip


def _scale_cell(scale: Mapping[str, float]) -> str:
    return f"{scale['scale']:.1f} ({scale['low']:.1f} to {scale['high']:.1f})"
