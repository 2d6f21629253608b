"""The LR at which a wider run diverges, from narrower runs: power law and flat law of the width, and their interval."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

LEVEL = 0.9  # of intervals
FLAT, POWER = "flat", "power of the width"
FAR = 200.0  # of logarithms: where the search for a quantile begins


class Bracket(NamedTuple):
    """Of one seed: the largest LR below the least that diverged, and that one."""

    stable: float
    diverged: float

    @property
    def middle(self) -> float:
        """The geometric mean of both."""
        return math.sqrt(self.stable * self.diverged)


class Law(NamedTuple):
    """A law's Student t of ln LR for one new run at the wider width, and the law's share in the forecast."""

    name: str
    exponent: float
    centre: float
    spread: float
    freedom: int
    weight: float

    def quantile(self, probability: float) -> float:
        """The LR below which the law expects this share of wider runs to diverge first."""
        return math.exp(self.centre + self.spread * float(special.stdtrit(self.freedom, probability)))


def find_bracket(outcomes: Mapping[float, bool]) -> Bracket | None:
    """The bracket of {LR: whether it diverged}; None where the least LR diverged, or none."""
    lost = [rate for rate, diverged in outcomes.items() if diverged]
    below = [rate for rate in outcomes if lost and rate < min(lost)]
    return Bracket(max(below), min(lost)) if below else None


def fit_laws(brackets: Mapping[int, Sequence[Bracket]], width: float) -> list[Law]:
    """Both laws, fitted to the means over seeds of ln LR, with the spread of a single new run at `width`.

    The variance of a width's mean is that about the power law, but no less than seeds and the step between tried rates
    make it. The laws share the forecast by BIC at this variance, equal before the data.
    """
    logs = [[math.log(each.middle) for each in seeds] for seeds in brackets.values()]
    x, y = np.log(list(brackets)), np.array([np.mean(seeds) for seeds in logs])
    n_seeds = float(np.mean([len(seeds) for seeds in logs]))
    by_seed = float(np.mean([np.var(seeds, ddof=1) if len(seeds) > 1 else 0.0 for seeds in logs]))
    steps = [math.log(each.diverged / each.stable) for seeds in brackets.values() for each in seeds]
    by_step = float(np.mean(np.square(steps))) / 12  # of a uniform in the bracket
    line = np.vander(x, 2)
    scatter = float(np.sum((y - line @ np.linalg.lstsq(line, y)[0]) ** 2)) / (len(x) - 2)
    variance = max(scatter, (by_seed + by_step) / n_seeds)
    laws = []
    for name, degree in ((FLAT, 0), (POWER, 1)):
        design, at = np.vander(x, degree + 1), np.vander([math.log(width)], degree + 1)[0]
        coefficients = np.linalg.lstsq(design, y)[0]
        misfit = float(np.sum((y - design @ coefficients) ** 2))
        one_run = variance * (1 + at @ np.linalg.solve(design.T @ design, at)) + by_seed * (1 - 1 / n_seeds) + by_step
        weight = math.exp(-0.5 * (misfit / variance + degree * math.log(len(x))))
        exponent = float(coefficients[0]) if degree else 0.0
        laws.append(Law(name, exponent, float(at @ coefficients), math.sqrt(one_run), len(x) - degree - 1, weight))
    total = sum(law.weight for law in laws)
    return [law._replace(weight=law.weight / total) for law in laws]


def mix_quantile(laws: Sequence[Law], probability: float) -> float:
    """The quantile of the laws' mixture, as an LR."""

    def excess(log_rate: float) -> float:
        shares = [law.weight * special.stdtr(law.freedom, (log_rate - law.centre) / law.spread) for law in laws]
        return float(sum(shares)) - probability

    return math.exp(optimize.brentq(excess, -FAR, FAR))


def forecast(brackets: Mapping[int, Sequence[Bracket]], width: int, level: float = LEVEL) -> dict[str, Any]:
    """The LR at which one run of this width diverges: `lr`, its interval `low` to `high`, and both laws."""
    laws = fit_laws(brackets, width)
    ends = (1 - level) / 2, (1 + level) / 2
    return {
        "width": width,
        "lr": mix_quantile(laws, 0.5),
        "low": mix_quantile(laws, ends[0]),
        "high": mix_quantile(laws, ends[1]),
        "level": level,
        "laws": [
            {"name": law.name, "weight": law.weight, "exponent": law.exponent, "lr": law.quantile(0.5),
             "low": law.quantile(ends[0]), "high": law.quantile(ends[1])}
            for law in laws
        ],
    }  # fmt: skip
