"""The entry point: fit a law of curves to some runs' curves, and predict the whole curve of another schedule.

fitted = fit_curves([Curve, …], "annealing")
fitted.predict(curve).final            # (loss, low, high) at the schedule's last row
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from scipy import special

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.curves import spread
from scalelab.laws.curves.curve import Columns, Curve, even_steps, schedule_columns, stack_columns, thin_curve
from scalelab.laws.curves.problem import CurveProblem
from scalelab.laws.law import curve_forms as forms
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import load_objective
from scalelab.laws.solve import optimum
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem

LEAST_ROWS = 8  # of a run after its warm-up
OBJECTIVES = ("huber_log", "mse_log")
MOST_RESAMPLES = 200  # simulated tables: each refit sums over all changes of the LR


@dataclasses.dataclass(frozen=True, eq=False)
class LeftOut:
    """A schedule that was left out of a fit: the runs that followed it, and how far they were missed.

    `mae`: mean absolute error of log loss; `ratio`: root mean square of the errors over what simulations expect.
    """

    runs: tuple[str, ...]
    mae: float
    ratio: float


@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """The predicted curve of a schedule: loss [P] at `steps` [P] with its interval, and what was measured there.

    `baseline`: by a power law in steps alone. `measured`: None for a schedule that was not trained.
    """

    name: str
    steps: np.ndarray
    loss: np.ndarray
    low: np.ndarray
    high: np.ndarray
    baseline: np.ndarray
    measured: np.ndarray | None = None

    @property
    def final(self) -> tuple[float, float, float]:
        """Loss at the last row, and its interval."""
        return float(self.loss[-1]), float(self.low[-1]), float(self.high[-1])

    @functools.cached_property
    def scores(self) -> dict[str, float]:
        """MAE (nats), R2, rows inside the interval and the baseline's MAE; {} for a schedule that was not trained."""
        if self.measured is None:
            return {}
        errors = self.measured - self.loss
        spread_out = np.sum((self.measured - self.measured.mean()) ** 2)
        return {
            "mae": float(np.abs(errors).mean()),
            "r2": float(1 - errors @ errors / spread_out),
            "rows": len(errors),
            "inside": int(np.sum((self.low <= self.measured) & (self.measured <= self.high))),
            "final_measured": float(self.measured[-1]),
            "final_inside": bool(self.low[-1] <= self.measured[-1] <= self.high[-1]),
            "baseline_mae": float(np.abs(self.measured - self.baseline).mean()),
            "baseline_final": float(self.baseline[-1]),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class FittedCurves:
    """A law fitted to curves (`curves` as thinned). `samples`: parameters of refits to simulated tables.

    `widening`: factor on every predicted interval, from `left_out` (None: too few schedules to tell).
    """

    problem: Problem
    best: Optimum
    curves: tuple[Curve, ...]
    errors: spread.RunErrors
    samples: dict[str, np.ndarray]
    left_out: tuple[LeftOut, ...]
    widening: float | None
    baseline: Optimum
    level: float
    seed: int

    @property
    def law(self) -> Law:
        """The fitted law."""
        return self.problem.law

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals of the parameters from tables simulated by run; not widened, as they assume the law's form."""
        ends = [50 - 50 * self.level, 50 + 50 * self.level]
        spans = {name: np.percentile(values, ends) for name, values in self.samples.items()}
        return {name: (float(low), float(high)) for name, (low, high) in spans.items()}

    def undetermined(self) -> list[str]:
        """Parameters whose interval reaches zero or spans more than a factor of ten."""
        return [name for name, (low, high) in self.intervals().items() if low <= 0 or high > 10 * low]

    def predict(self, curve: Curve, seed: int = 1) -> Prediction:
        """Predict the curve of a run (at its thinned rows) or of a schedule alone (at even steps) of the same model."""
        thin = thin_curve(curve)
        if len(curve.steps) and not len(thin.steps):
            raise BadInput(f"{curve.name}: no loss after its warm-up of {curve.warmup + 1} steps")
        steps = thin.steps if len(thin.steps) else even_steps(curve)
        columns = _columns(self.law, curve, steps)
        logs = np.log(self.law(columns, self.best.params))
        random = np.random.default_rng((self.seed, seed))
        with np.errstate(invalid="ignore"):
            sampled = np.log(spread.sampled_losses(self.problem, columns, self.samples))
        sampled += self.errors.simulate(np.zeros(len(steps), int), len(sampled), random)
        ends = np.nanpercentile(sampled, [50 - 50 * self.level, 50, 50 + 50 * self.level], axis=0)
        low, high = logs + (self.widening or 1.0) * (ends[[0, 2]] - ends[1])
        flat = forms.BASELINE({"step": steps}, self.baseline.params)
        measured = thin.loss if len(thin.steps) else None
        return Prediction(curve.name, steps, np.exp(logs), np.exp(low), np.exp(high), flat, measured)


def fit_curves(
    curves: Sequence[Curve],
    law: str = "annealing",
    *,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = MOST_RESAMPLES,
    seed: int = 0,
    level: float = 0.9,
) -> FittedCurves:
    """Fit a law of `forms.CURVE_LAWS` to curves of one model and batch, which differ in schedule and seed.

    BadInput for curves to which the law can't be fitted, FitError if the optimum is not certain.
    """
    if law not in forms.CURVE_LAWS:
        names = ", ".join(forms.CURVE_LAWS)
        raise BadInput(f"--law={law}: not a law of curves{nearest_hint(law, forms.CURVE_LAWS)}; one of {names}")
    if objective not in OBJECTIVES:
        raise BadInput(f"--objective={objective}: curves are fitted in logs, by {' or '.join(OBJECTIVES)}")
    if not 0 < level < 1:
        raise BadInput(f"level = {level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    if not 20 <= bootstrap <= 10_000:
        raise BadInput(f"--bootstrap={bootstrap}: intervals of curves need 20 to 10000 simulated tables; 200 is usual")
    thin = tuple(thin_curve(curve) for curve in curves)
    spec = forms.CURVE_LAWS[law]
    _check_curves(thin, spec)
    columns = stack_columns([_columns(spec, curve, curve.steps) for curve in thin])
    target, chosen = np.concatenate([curve.loss for curve in thin]), load_objective(objective, delta)
    problem = CurveProblem(spec, columns, target, chosen)
    best = optimum.minimise_objective(problem)
    labels = np.repeat(np.arange(len(thin)), [len(curve.steps) for curve in thin])
    errors = spread.estimate_errors(problem, best, labels)
    samples = spread.simulate_params(problem, best, errors, labels, bootstrap, seed)
    left_out, widening = _leave_out(problem, best, errors, samples, thin, labels)
    flat = optimum.minimise_objective(CurveProblem(forms.BASELINE, columns, target, chosen))
    return FittedCurves(problem, best, thin, errors, samples, left_out, widening, flat, level, seed)


def _columns(law: Law, curve: Curve, steps: np.ndarray) -> Columns:
    return schedule_columns(curve, steps, law.name in forms.WARMUP_LAWS)


def _check_curves(curves: Sequence[Curve], law: Law) -> None:
    """BadInput for curves that can't determine the law."""
    for curve in curves:
        if len(curve.steps) < LEAST_ROWS:
            raise BadInput(
                f"{curve.name}: {len(curve.steps)} losses after the warm-up ({curve.warmup + 1} steps), and a curve "
                f"needs {LEAST_ROWS}: log or evaluate more often"
            )
    if not any((np.diff(curve.lr[curve.warmup : int(curve.steps[-1])]) < 0).any() for curve in curves):
        raise BadInput(
            f"no fitted run's LR decays after the warm-up: law {law.name!r} can't tell what annealing brings; "
            "add a run with a decay (cosine, wsd, multi_step)"
        )


def _leave_out(
    problem: Problem,
    best: Optimum,
    errors: spread.RunErrors,
    samples: spread.Samples,
    curves: Sequence[Curve],
    labels: np.ndarray,
) -> tuple[tuple[LeftOut, ...], float | None]:
    """Leave each schedule out in turn: (how far each was missed, the factor by which intervals are widened).

    The factor is the errors' root mean square over the expected one, at least 1, times Student's t over the normal
    quantile, as few schedules enter it.
    """
    schedules: dict[bytes, list[int]] = {}
    for i, curve in enumerate(curves):
        schedules.setdefault(curve.schedule, []).append(i)
    if len(schedules) < spread.LEAST_SCHEDULES:
        return (), None
    masks = [np.isin(labels, runs) for runs in schedules.values()]
    with np.errstate(invalid="ignore"):
        sampled = np.log(spread.sampled_losses(problem, problem.columns, samples))
    expected = np.nanvar(sampled, axis=0) + errors.run_sd**2 + errors.row_sd**2
    missed = spread.left_out_errors(problem, best, masks)
    ratios = [float(np.sqrt(np.mean(e**2 / expected[m]))) for e, m in zip(missed, masks, strict=True)]
    left_out = tuple(
        LeftOut(tuple(curves[i].name for i in runs), float(np.abs(e).mean()), ratio)
        for runs, e, ratio in zip(schedules.values(), missed, ratios, strict=True)
    )
    excess = max(1.0, float(np.sqrt(np.mean(np.square(ratios)))))
    few = special.stdtrit(len(masks), 0.95) / special.ndtri(0.95)
    return left_out, excess * few
