"""Ladders to accuracy: N and D give a task's loss, the loss its accuracy, and one interval holds both steps' errors.

Bhagia et al. 2024 (arXiv 2412.04403), eqs. 1 and 2. Each run counts with one row. How much its last checkpoints
scatter enters its weight, in both steps. Errors of both steps are simulated together, with the correlation that their
residuals have in one run. Legend: R simulated tables, P runs.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.law import Coefficient, Law, Scale, law_of
from scalelab.laws.law.names import LAWS
from scalelab.laws.law.objective import load_objective
from scalelab.laws.solve import newton, optimum
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem

PRIOR_CHECKPOINTS = 4.0  # all runs' scatter counts as so many checkpoints beside a run's own
WIDE = 0.2  # of accuracy: a floor or ceiling whose interval is wider is not determined
CHANCE = 0.05  # level of the rank correlation's test: accuracies that don't follow the loss determine no law


def task_accuracy(loss, *, floor: Coefficient, span: Coefficient, k: Scale(0.2, 50), L0: Scale(0.05, 20)):
    """accuracy = floor + span / (1 + exp(k (L - L0)))

    Bhagia et al. 2024, eq. 2: their a is span, b floor; accuracy falls with the loss, so the sign of k is set.
    """
    return floor + span / (1.0 + jnp.exp(k * (loss - L0)))


TASK_LOSS, TASK_ACCURACY = LAWS["chinchilla"], law_of(task_accuracy, target="accuracy")


@dataclasses.dataclass(frozen=True, eq=False)
class LadderRuns:
    """One row a run: N, D, task loss, accuracy [P]; scatter of the last checkpoints' log loss and accuracy [P] (nan:
    unknown), each from `checkpoints` [P].
    """

    N: np.ndarray
    D: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    loss_sd: np.ndarray
    accuracy_sd: np.ndarray
    checkpoints: np.ndarray

    def select(self, rows: np.ndarray) -> "LadderRuns":
        """Some of the runs."""
        return LadderRuns(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class LadderPrediction:
    """Task loss and accuracy of one new run, each (value, low, high); what was measured, if it was."""

    N: float
    D: float
    loss: tuple[float, float, float]
    accuracy: tuple[float, float, float]
    measured: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Ladder:
    """Both fitted steps. `samples`: parameters of refits to simulated tables, `noise` [R, 2] a new run's errors there.

    `sds`: standard deviation of log loss and of accuracy; `correlation` of the two errors of one run.
    """

    runs: LadderRuns
    problems: tuple[Problem, Problem]
    best: tuple[Optimum, Optimum]
    samples: tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
    noise: np.ndarray
    sds: tuple[float, float]
    correlation: float
    level: float

    def predict(self, N: float, D: float, measured: tuple[float, float] | None = None) -> LadderPrediction:
        """Predict a run: the interval of accuracy holds the errors of both steps."""
        point = {"N": np.array([N]), "D": np.array([D])}
        loss = float(self.problems[0].law(point, self.best[0].params)[0])
        accuracy = float(self.problems[1].law({"loss": np.array([loss])}, self.best[1].params)[0])
        columns = {name: values[:, None] for name, values in self.samples[0].items()}
        losses = self.problems[0].law(point, columns)[:, 0] * np.exp(self.noise[:, 0])
        accuracies = self.problems[1].law({"loss": losses}, self.samples[1]) + self.noise[:, 1]
        spans = [self._interval(losses), self._interval(np.clip(accuracies, 0.0, 1.0))]
        return LadderPrediction(N, D, (loss, *spans[0]), (min(max(accuracy, 0.0), 1.0), *spans[1]), measured)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals of all free parameters, and of the ceiling, floor + span."""
        each = {name: values for step in self.samples for name, values in step.items()}
        return {name: self._interval(values) for name, values in (each | {"ceiling": self._ceiling(each)}).items()}

    def params(self) -> dict[str, float]:
        """All free parameters, and the ceiling."""
        each = {**self.best[0].params, **self.best[1].params}
        return each | {"ceiling": float(self._ceiling(each))}

    def doubts(self) -> list[str]:
        """What the ladder does not determine, as lines."""
        lines, accuracy = [], self.runs.accuracy
        from scipy.stats import spearmanr  # here: it takes 0.8 s

        if not spearmanr(self.runs.loss, accuracy).pvalue < CHANCE:
            lines.append(
                f"accuracies of {accuracy.min():.3f} to {accuracy.max():.3f} do not follow the task loss: all runs are "
                "at chance, or all at the ceiling, and the sigmoid is not determined"
            )
        intervals = self.intervals()
        for name, cause in (("floor", "no run is at chance"), ("ceiling", "no run is near it")):
            low, high = intervals.get(name, (0.0, 0.0))
            if high - low > WIDE or high > 1.0 + WIDE:
                mend = "; hold it: --hold=floor=0.25 if chance is 1 in 4" if name == "floor" else ""
                lines.append(f"the {name} is not determined ({low:.3g} to {high:.3g}): {cause}{mend}")
        return lines

    def _ceiling(self, values: Mapping[str, ArrayLike]) -> np.ndarray:
        known = {**dict(self.problems[1].law.held), **values}
        return np.add(known["floor"], known["span"])

    def _interval(self, values: np.ndarray) -> tuple[float, float]:
        low, high = np.nanpercentile(values, [50 - 50 * self.level, 50 + 50 * self.level])
        return float(low), float(high)


def gather_runs(
    N: np.ndarray, D: np.ndarray, loss: np.ndarray, accuracy: np.ndarray, labels: Sequence[str] | None, last: int
) -> LadderRuns:
    """Keep one of each run's checkpoints: that of most tokens (`labels` name runs; None: every row is a run).

    The scatter is that of the last `last` checkpoints around a straight line through them.
    """
    if last < 3:
        raise BadInput(f"--last-checkpoints={last}: the scatter about a line needs 3 or more; 5 is usual")
    names = list(range(len(N))) if labels is None else list(labels)
    rows = []
    for name in dict.fromkeys(names):
        of = np.flatnonzero([each == name for each in names])
        of = of[np.argsort(D[of], kind="stable")][-last:]
        scatter = [_scatter(np.log(loss[of])), _scatter(accuracy[of])]
        rows.append((N[of[-1]], D[of[-1]], loss[of[-1]], accuracy[of[-1]], *scatter, len(of)))
    return LadderRuns(*np.array(rows, float).T)


def fit_ladder(
    runs: LadderRuns,
    *,
    hold: Mapping[str, float] | None = None,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    level: float = 0.9,
) -> Ladder:
    """Fit both steps to runs. BadInput for runs that can't determine them, FitError if an optimum is not certain."""
    laws = _hold(hold or {})
    _check_runs(runs, laws, bootstrap, level)
    problems = (
        pose_problem(laws[0], {"N": runs.N, "D": runs.D}, runs.loss, load_objective(objective, delta)),
        pose_problem(laws[1], {"loss": runs.loss}, runs.accuracy, load_objective("mse")),
    )
    weights = [_weights(sd, runs.checkpoints) for sd in (runs.loss_sd, runs.accuracy_sd)]
    best = [optimum.minimise_objective(problem, w) for problem, w in zip(problems, weights, strict=True)]
    residuals = [problem.residuals(each.params) for problem, each in zip(problems, best, strict=True)]
    scaled = [r * np.sqrt(w) for r, w in zip(residuals, weights, strict=True)]
    spare = [len(runs.N) - len(law.params) for law in laws]
    sds = [float(np.sqrt(z @ z / n)) for z, n in zip(scaled, spare, strict=True)]
    norms = np.linalg.norm(scaled[0]) * np.linalg.norm(scaled[1])
    correlation = float(scaled[0] @ scaled[1] / norms) if norms > 0 else 0.0
    errors = _simulate_errors(bootstrap, len(runs.N) + 1, sds, correlation, min(spare), seed)
    refits = []
    for problem, each, w, r, e in zip(problems, best, weights, residuals, errors, strict=True):
        rows = np.tile(w, (bootstrap, 1))
        refits.append(newton.descend(problem, np.tile(each.x, (bootstrap, 1)), rows, moved=e[:, :-1] / np.sqrt(w) - r))
    good = refits[0].converged & refits[1].converged
    samples = [problem.to_params(refit.x[good]) for problem, refit in zip(problems, refits, strict=True)]
    return Ladder(
        runs,
        problems,
        (best[0], best[1]),
        (samples[0], samples[1]),
        errors[:, good, -1].T,
        (sds[0], sds[1]),
        correlation,
        level,
    )


def _simulate_errors(
    tables: int, rows: int, sds: Sequence[float], correlation: float, dof: int, seed: int
) -> np.ndarray:
    """Errors [2, tables, rows] of both steps, correlated in each row."""
    random = np.random.default_rng(seed)
    # One scale a table, of Student's t: intervals carry the uncertainty of the noise itself.
    scales = np.sqrt(dof / random.chisquare(dof, tables))
    errors = random.standard_normal((2, tables, rows))
    errors[1] = correlation * errors[0] + np.sqrt(1 - correlation**2) * errors[1]
    return errors * (np.array(sds)[:, None, None] * scales[:, None])


def hold_out_ladder(runs: LadderRuns, count: int, **options: object) -> list[LadderPrediction]:
    """Predict the `count` runs of most FLOPs from a fit to the others. BadInput if too few are left."""
    if not 0 < count < len(runs.N):
        raise BadInput(f"--holdout={count}: of {len(runs.N)} runs 1 to {len(runs.N) - 1} can be held out")
    order = np.argsort(runs.N * runs.D, kind="stable")
    ladder = fit_ladder(runs.select(order[:-count]), **options)  # type: ignore[arg-type]
    held = runs.select(order[-count:])
    each = zip(held.N, held.D, held.loss, held.accuracy, strict=True)
    return [ladder.predict(float(N), float(D), (float(loss), float(accuracy))) for N, D, loss, accuracy in each]


def _hold(hold: Mapping[str, float]) -> tuple[Law, Law]:
    known = [*TASK_LOSS.params, *TASK_ACCURACY.params]
    if unknown := [name for name in hold if name not in known]:
        raise BadInput(f"--hold={unknown[0]}: no such parameter{nearest_hint(unknown[0], known)}; {', '.join(known)}")
    steps = [{name: value for name, value in hold.items() if name in law.params} for law in (TASK_LOSS, TASK_ACCURACY)]
    return law_lib.hold_params(TASK_LOSS, **steps[0]), law_lib.hold_params(TASK_ACCURACY, **steps[1])


def _check_runs(runs: LadderRuns, laws: Sequence[Law], bootstrap: int, level: float) -> None:
    if not 0 < level < 1:
        raise BadInput(f"--level={level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    if not 20 <= bootstrap <= 10_000:
        raise BadInput(f"--bootstrap={bootstrap}: the joint interval needs 20 to 10000 simulated tables; 1000 is usual")
    if runs.accuracy.max() > 1:
        raise BadInput(
            f"an accuracy of {runs.accuracy.max():g} is not a share from 0 to 1; of per cent: "
            "--columns=accuracy=NAME*0.01"
        )
    need = max(len(law.params) for law in laws) + 2
    if len(runs.N) < need:
        raise BadInput(f"{len(runs.N)} runs: both steps need at least {need} (a row is a run, not a checkpoint)")


def _scatter(values: np.ndarray) -> float:
    """Standard deviation around a straight line through values in order; nan of fewer than three."""
    if len(values) < 3:
        return np.nan
    at = np.arange(len(values))
    left = values - np.polyval(np.polyfit(at, values, 1), at)
    return float(np.sqrt(left @ left / (len(values) - 2)))


def _weights(sd: np.ndarray, checkpoints: np.ndarray) -> np.ndarray:
    """Weights [P] of mean 1: inverse variances of the last checkpoints, drawn towards that of all; 1 if unknown."""
    known = np.isfinite(sd)
    if not known.any() or not np.nanmax(sd) > 0:
        return np.ones(len(sd))
    shared, own = float(np.mean(sd[known] ** 2)), np.maximum(checkpoints - 2, 0) * known
    variances = (PRIOR_CHECKPOINTS * shared + own * np.nan_to_num(sd) ** 2) / (PRIOR_CHECKPOINTS + own)
    return (1 / variances) / np.mean(1 / variances)
