"""Intervals of a fitted law of curves, by run: residuals within a run are correlated, so rows are not independent.

The law is refitted to tables simulated from it. Each simulated run has one error of its own and, within it, row errors
that follow an autoregression of order 1. With three schedules or more, each is left out in turn: where the fit misses
it by more than the simulations do, intervals are widened. Legend: R simulated tables, P rows, K parameters.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from scalelab.laws.solve import newton
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust.dependence import LEAST_DOF, estimate_dependence

LEAST_SCHEDULES = 3  # with fewer nothing is left to compare a schedule that is left out with
MOST_CORRELATION = 0.97
AT_ONCE = 2_000_000  # values of a law's sums in memory at once
Samples = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RunErrors:
    """Errors of log losses: standard deviation between runs (with its degrees of freedom) and within, correlation of
    neighbouring rows. `runs`: their number; with one run `run_sd` can't be estimated, and is 0.
    """

    run_sd: float
    dof: float
    row_sd: float
    correlation: float
    runs: int

    @property
    def effective_share(self) -> float:
        """The number of independent rows that one row of a run is worth, in the run's mean."""
        return (1 - self.correlation) / (1 + self.correlation)

    def simulate(self, labels: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
        """Errors [R, P] of tables whose runs are `labels` [P] (neighbouring rows of one run stand side by side)."""
        scale = np.sqrt(self.dof / random.chisquare(self.dof, count)) * self.run_sd
        effects = scale[:, None] * random.standard_normal((count, int(labels.max()) + 1))
        noise = random.standard_normal((count, len(labels)))
        fresh = np.sqrt(1 - self.correlation**2)
        for i in range(1, len(labels)):
            if labels[i] == labels[i - 1]:
                noise[:, i] = self.correlation * noise[:, i - 1] + fresh * noise[:, i]
        return effects[:, labels] + self.row_sd * noise


def estimate_errors(problem: Problem, best: Optimum, labels: np.ndarray) -> RunErrors:
    """Errors by run from the residuals of a fit; `labels` [P] are the runs, from 0."""
    residuals = problem.residuals(best.params)
    sizes = np.bincount(labels)
    clean = residuals - (np.bincount(labels, residuals) / sizes)[labels]
    side_by_side = labels[1:] == labels[:-1]
    correlation = np.sum((clean[1:] * clean[:-1])[side_by_side]) / max(np.sum(clean**2), 1e-300)
    correlation += (1 + 3 * correlation) / sizes.mean()  # its bias of first order (Kendall 1954)
    correlation = float(np.clip(correlation, 0.0, MOST_CORRELATION))
    runs = len(sizes)
    if runs == 1:
        spare = max(len(residuals) - len(best.params), 1)
        return RunErrors(0.0, LEAST_DOF, float(np.sqrt(residuals @ residuals / spare)), correlation, 1)
    shared = estimate_dependence(problem, best, labels, "run")
    # Correlated row errors move a run's mean, too; the effect of the run is what exceeds them.
    alone = shared.row_sd**2 * ((1 + correlation) / (1 - correlation) - 1) / sizes.mean()
    run_sd = float(np.sqrt(max(shared.group_sd**2 - alone, 0.0)))
    return RunErrors(run_sd, max(shared.dof, LEAST_DOF), shared.row_sd, correlation, runs)


def simulate_params(
    problem: Problem, best: Optimum, errors: RunErrors, labels: np.ndarray, count: int, seed: int
) -> dict[str, np.ndarray]:
    """Parameters {name: [<= R]} of refits to simulated tables; those that did not converge are left out."""
    moved = errors.simulate(labels, count, np.random.default_rng(seed)) - problem.residuals(best.params)
    refits = newton.descend(problem, np.tile(best.x, (count, 1)), np.ones_like(moved), moved=moved)
    return problem.to_params(refits.x[refits.converged])


def sampled_losses(problem: Problem, columns: Mapping[str, np.ndarray], samples: Samples) -> np.ndarray:
    """Losses [R, P] of the law at `columns` for each of `samples` {name: [R]}."""
    count, size = len(next(iter(samples.values()))), columns.get("drop", columns["step"][:, None]).size
    parts = []
    for part in np.array_split(np.arange(count), max(1, count * size // AT_ONCE)):
        parts.append(problem.law(columns, {name: values[part, None] for name, values in samples.items()}))
    return np.concatenate(parts)


def left_out_errors(problem: Problem, best: Optimum, schedules: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Errors of log loss on the rows of each of `schedules` (masks [P]), predicted by a fit to all other rows."""
    weights = 1.0 - np.asarray(schedules, float)
    refits = newton.descend(problem, np.tile(best.x, (len(weights), 1)), weights)
    residuals, _ = problem.slopes(refits.x)
    return [row[mask] for row, mask in zip(residuals, schedules, strict=True)]
