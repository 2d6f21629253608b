"""How often sweeps call a setting worse that is not, and how often they see a gap, beside Dunnett's test.

    python -m checks.statistics.gaps [--sweeps=300] [--json[=PATH]]

Simulated sweeps of 4 and 8 settings over 2, 3 and 5 seeds, which shift all settings together by three times the noise.
Noise is equal in all settings, grows by 4 or by 10 over them, or is 10 times as large in one. Where all settings are
equal, any verdict "worse" is an error. Where one of them is 4 standard deviations (root mean square over settings) of
a run above the others, "worse" of it is power. Dunnett's test (one-sided at 5 %) has the first setting as its
control and knows that it is one of the best, which a sweep does not. Writes `checks/results/gaps.json` and `.md`; some
minutes on one core.

    python -m checks.statistics.gaps --sweeps=40
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.experiments.shared import publish_result
from scalelab.numbers.gaps import LEVEL, judge_gaps
from scalelab.numbers.shared_noise import estimate_noise

SETTINGS, SEEDS = (4, 8), (2, 3, 5)
SHIFT = 4.0  # of the setting that is worse, in noise of a run
SEED_EFFECT = 3.0
NOISES = {
    "equal": lambda k: np.ones(k),
    "grows by 4": lambda k: np.geomspace(1, 4, k),
    "grows by 10": lambda k: np.geomspace(1, 10, k),
    "one has 10 times": lambda k: np.r_[np.ones(k - 1), 10.0],
}
METHODS = ("sweep", "dunnett by seed", "dunnett", "paired t")
DRAWS = 400_000  # for the critical size of Dunnett's test where seeds are set aside


def dunnett_critical(k: int, seeds: int) -> float:
    """The critical size of scipy's one-sided test of k - 1 settings against a control."""
    losses = np.random.default_rng(0).normal(size=(k, seeds))
    test = stats.dunnett(*losses[1:], control=losses[0], alternative="greater", rng=0)
    gap = losses[1].mean() - losses[0].mean()
    return float((gap - test.confidence_interval(LEVEL).low[0]) / dunnett_error(losses))


def dunnett_error(losses: np.ndarray) -> float:
    """The standard error of a gap by the pooled variance within settings."""
    return float(np.sqrt(2 * losses.var(1, ddof=1).mean() / losses.shape[1]))


def dunnett_critical_by_seed(k: int, seeds: int) -> float:
    """The critical size of Dunnett's one-sided test in a two-way table, by simulation: scipy's has one-way tables."""
    random, freedom = np.random.default_rng(0), (k - 1) * (seeds - 1)
    normals = random.standard_normal((DRAWS, k))
    sizes = (normals[:, 1:].max(1) - normals[:, 0]) / np.sqrt(2 * random.chisquare(freedom, DRAWS) / freedom)
    return float(np.quantile(sizes, LEVEL))


def error_by_seed(losses: np.ndarray) -> float:
    """The standard error of a gap by what means of settings and of seeds leave."""
    left = losses - losses.mean(1, keepdims=True) - losses.mean(0) + losses.mean()
    k, seeds = losses.shape
    return float(np.sqrt(2 * (left**2).sum() / ((k - 1) * (seeds - 1)) / seeds))


def judge_losses(losses: np.ndarray, critical: float, critical_by_seed: float) -> dict[str, np.ndarray]:
    """{method: which settings [K] it calls worse} of losses [K, S]."""
    noise = estimate_noise(losses)
    assert noise
    k, means = len(losses), losses.mean(1)
    best = int(means.argmin())
    paired = np.array(
        [
            stats.ttest_rel(row, losses[best], alternative="greater").pvalue if i != best else 1.0
            for i, row in enumerate(losses)
        ]
    )
    return {
        "sweep": judge_gaps(noise).p < 1 - LEVEL,
        "dunnett by seed": means - means[0] > critical_by_seed * error_by_seed(losses),
        "dunnett": means - means[0] > critical * dunnett_error(losses),
        "paired t": paired < (1 - LEVEL) / (k - 1),
    }


def simulate_cell(k: int, seeds: int, noise: str, sweeps: int) -> dict[str, dict[str, float]]:
    """{method: its error rate and power}."""
    random = np.random.default_rng(k * 100 + seeds)
    scale = NOISES[noise](k)
    scale = scale / np.sqrt((scale**2).mean())
    shift = np.where(np.arange(k) == 1, SHIFT, 0.0)[:, None]
    critical = dunnett_critical(k, seeds), dunnett_critical_by_seed(k, seeds)
    counts = {method: {"error": 0, "power": 0} for method in METHODS}
    for _ in range(sweeps):
        losses = random.normal(size=(k, seeds)) * scale[:, None] + SEED_EFFECT * random.normal(size=seeds)
        equal, shifted = judge_losses(losses, *critical), judge_losses(losses + shift, *critical)
        for method, count in counts.items():
            count["error"] += int(equal[method].any())
            count["power"] += int(shifted[method][1])
    return {method: {name: value / sweeps for name, value in count.items()} for method, count in counts.items()}


def format_page(result: dict[str, Any]) -> str:
    """Format the table as Markdown."""
    error = (0.05 * 0.95 / result["sweeps"]) ** 0.5
    lines = [
        "# Gaps in sweeps: error rates and power",
        "",
        f"`{result['command']}`, {result['date']}, {result['machine']}.",
        "",
        f"{result['sweeps']} simulated sweeps a row, in each of which seeds shift all settings together by "
        f"{SEED_EFFECT:g} times the noise of a run. Error: any setting is called worse though all are equal (standard "
        f"error {error:.1%} at 5 %). Power: one setting, {SHIFT:g} times the noise (root mean square over settings) "
        "above the others, is called worse. `sweep`: `scalelab.numbers.gaps`, as `runs --by` says it. `by seed`: "
        "Dunnett's exact test against a control known beforehand to be one of the best, one variance for all, seeds "
        "set aside. `Dunnett`: scipy's, which does not set them aside. `paired t`: each gap to the best by its own "
        "seeds alone, at 5 % over the number of gaps. A sweep knows neither its best setting nor that variances are "
        "equal: that is the difference to `by seed`.",
        "",
        "| settings | seeds | noise | error: sweep | by seed | Dunnett | paired t "
        "| power: sweep | by seed | Dunnett | paired t |",
        "|" + "---|" * 11,
    ]
    for row in result["rows"]:
        cells = [f"{row[method][name]:.1%}" for name in ("error", "power") for method in METHODS]
        lines.append(f"| {row['settings']} | {row['seeds']} | {row['noise']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main(argv: Sequence[str]) -> int:
    """Run the study; exit code 0, or 2 for bad input."""
    return guarded("gaps", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.gaps", __doc__)
    parser.add_argument("--sweeps", type=int, default=300, metavar="N", help="simulated sweeps a row")
    options = parser.parse_args(argv)
    rows = []
    for k in SETTINGS:
        for seeds in SEEDS:
            for noise in NOISES:
                cell = simulate_cell(k, seeds, noise, options.sweeps)
                rows.append({"settings": k, "seeds": seeds, "noise": noise, **cell})
                print(f"{k} settings, {seeds} seeds, {noise}: {cell}", file=sys.stderr, flush=True)
    result = result_header("statistics.gaps", argv) | {"sweeps": options.sweeps, "rows": rows}
    return publish_result(RESULTS, "gaps", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
