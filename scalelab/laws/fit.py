"""From columns of numbers to a fitted law and all that tells how far to trust it: the entry point of this room.

    from scalelab import laws
    fitted = laws.fit({"N": N, "D": D, "loss": loss}, law="chinchilla", target_flops=[1e24])

Nothing is printed; a mistake raises BadInput, an optimum that can't be certified FitError.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.law import forms
from scalelab.laws.law import law as law_lib
from scalelab.laws.law import objective as objective_lib
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.law import Law
from scalelab.laws.law.names import load_law
from scalelab.laws.read import units
from scalelab.laws.read.groups import Groups, choose_groups
from scalelab.laws.read.points import is_numeric, law_columns
from scalelab.laws.solve import likelihood, optimum
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns, Problem
from scalelab.laws.trust import design, profile, uncertainty
from scalelab.laws.trust.dependence import Dependence, estimate_dependence
from scalelab.laws.trust.design import Finding
from scalelab.laws.trust.holdout import Holdout, hold_out
from scalelab.laws.trust.profile import ParamProfile
from scalelab.laws.trust.uncertainty import Bootstrap, Prediction
from scalelab.laws.use import chinchilla_optimum, decision
from scalelab.laws.use.decision import Decision

INTERVAL_LEVEL = 0.9
CLOSE_BASIN = 0.01  # another optimum within 1 % of the objective: the data hardly choose between the two
# BCa: in simulated studies its 90 % cover 87 to 95 %, plain percentiles 93 to 97 % (experiments/results/coverage.md).
INTERVAL_METHOD = (
    "BCa of refits to resampled runs (a, b: percentiles); for one new run, percentiles times the residuals of "
    "left-out runs"
)
DEPENDENT_METHOD = (
    "percentiles of refits to simulated tables, whose rows share an error by group, corrected for bias (a, b: "
    "percentiles); for one new run, percentiles times the error of a row of a new group"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted law. `kept` rows were fitted; `excluded` holds {"name", "reason"} of every other (if rows are known).

    `k` is that of C = k N D: the median of the fitted runs' own C / (N D), or 6 if their C is not known.
    `dependence`: what rows of one run share, None if rows are independent. `design` holds the weak points of the runs
    themselves, `holdout` how well the small runs predict the largest.
    """

    problem: Problem
    best: Optimum
    bootstrap: Bootstrap | None
    identifiability: dict[str, ParamProfile]
    decisions: tuple[Decision, ...]
    design: tuple[Finding, ...]
    holdout: Holdout | None
    seconds: float
    k: float
    level: float
    n_convention: str
    dependence: Dependence | None = None
    kept: tuple[Mapping[str, Any], ...] = ()
    excluded: tuple[dict[str, str], ...] = ()

    @property
    def law(self) -> Law:
        """The fitted law."""
        return self.problem.law

    @property
    def params(self) -> dict[str, float]:
        """Fitted parameters {name: value}."""
        return self.best.params

    def loss(self, N: float, D: float, **others: float) -> float:
        """Loss of the fitted law, in nats per token."""
        return float(self.law(_point(N, D, self.k, others), self.params))

    def predict(self, N: float, D: float, **others: float) -> Prediction:
        """Predict the loss of one new run, with its interval. N by the fit's convention. BadInput without resamples."""
        return uncertainty.predict_run(
            self.problem, self.best, self._resamples(), _point(N, D, self.k, others), self.level
        )

    def decide(self, C: float, **held: float) -> Decision:
        """Decide how to spend C FLOPs, counted as the fitted runs count theirs. N by the fit's convention.

        BadInput and FitError as in `decision.decide_allocation`.
        """
        return decision.decide_allocation(self.problem, self.best, self._resamples(), C, self.k, self.level, held)

    def _resamples(self) -> Bootstrap:
        if self.bootstrap is None:
            raise BadInput("no interval without resamples: fit with bootstrap > 0")
        return self.bootstrap

    def warnings(self) -> list[str]:
        """Warnings for readers of the numbers; [] if there are none."""
        certificate = self.best.certificate
        warnings = [f"{name} is at its bound: the data do not determine it" for name in certificate.at_bounds]
        if certificate.next_basin_gap is not None and certificate.next_basin_gap < CLOSE_BASIN:
            warnings.append(
                f"another optimum is only {certificate.next_basin_gap:.2%} worse: the data hardly choose between them"
            )
        warnings += self.bootstrap.warnings() if self.bootstrap else []
        warnings += [f"{name} is {p.verdict}" for name, p in self.identifiability.items() if p.verdict != "identified"]
        return warnings

    def to_json(self) -> dict[str, Any]:
        """The JSON that `scalelab fit --json` writes, also the `fit` block of a study's summary.json."""
        intervals = uncertainty.param_intervals(self.bootstrap, self.params, self.level) if self.bootstrap else {}
        exponents: dict[str, float] = {}
        if self.law.function in (forms.chinchilla, forms.chinchilla_gamma):  # Hoffmann's eq. 4 holds for these
            exponents, spread = _optimal_exponents(self.params, self.bootstrap, self.level)
            intervals |= spread
        residuals = self.problem.residuals(self.params)
        return {
            "law": self.law.name,
            "equation": self.law.equation,
            "n_rows": self.problem.points,
            "n_runs": self.problem.points,
            "n_convention": self.n_convention,
            "objective": self.problem.objective.to_json(self.best.value),
            "params": self.params,
            "fixed": dict(self.law.held),
            "exponents": exponents,
            "residual_rms": float(np.sqrt(np.mean(residuals**2))),
            "certificate": self.best.certificate.to_json(),
            "interval_level": self.level,
            "interval_method": DEPENDENT_METHOD if self.dependence else INTERVAL_METHOD,
            "intervals": {name: list(each.get("bca", each["percentile"])) for name, each in intervals.items()},
            "intervals_percentile": {name: list(each["percentile"]) for name, each in intervals.items()},
            "standard_errors": {name: each["se"] for name, each in intervals.items()},
            "bootstrap": self.bootstrap.to_json() if self.bootstrap else None,
            "dependence": self.dependence.to_json() if self.dependence else None,
            "identifiability": {name: p.to_json() for name, p in self.identifiability.items()},
            "allocation": {f"{d.C:g}": d.to_json() for d in self.decisions},
            "design": [finding.to_json() for finding in self.design],
            "holdout": self.holdout.to_json() if self.holdout else None,
            "flops_per_param_token": self.k,
            "excluded": list(self.excluded),
            "warnings": self.warnings(),
            "seconds": self.seconds,
        }


def _point(N: float, D: float, k: float, others: Mapping[str, float]) -> dict[str, float]:
    return {"N": N, "D": D, "C": k * N * D, "M": D / N, **others}


def _optimal_exponents(
    params: Mapping[str, float], boot: Bootstrap | None, level: float
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Exponents a, b of N_opt ~ C^a, D_opt ~ C^b (Hoffmann et al. 2022, eq. 4), and their percentile intervals."""

    def exponents(alpha: Any, beta: Any) -> dict[str, Any]:
        return {"a": beta / (alpha + beta), "b": alpha / (alpha + beta)}

    point = exponents(params["alpha"], params["beta"])
    spread = exponents(boot.params["alpha"], boot.params["beta"]) if boot else {}
    return point, {
        n: {"percentile": uncertainty.central_interval(v, level), "se": float(np.std(v))} for n, v in spread.items()
    }


def fit(
    table: Mapping[str, ArrayLike], law: str | Law = "chinchilla", *, objective: str = "huber_log",
    delta: float | None = None, bootstrap: int = 1000, seed: int = 0, cluster: str | Groups = "auto",
    target_flops: Sequence[float] = (), holdout: int = 0, level: float = INTERVAL_LEVEL, identify: bool = True,
    k: float | None = None, n_convention: str = "N", held: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
) -> Fitted:  # fmt: skip
    """Fit `law` to a table of columns, each [P]: N, D, C, M, U, width, depth, … and loss in nats per token.

    `cluster`: a column, rows of equal values in which share a part of their error, `Groups` of labels [P], "none", or
    "auto": checkpoints of a run and seeds of a setting are found (`groups.find_groups`). `holdout`: so many of the
    largest rows are held out, predicted and scored by a second fit. `held` fixes other columns for the decisions at
    `target_flops`; `fixed` fixes parameters of the law (see `law.hold_params`). BadInput for a table or a design to
    which the law can't be fitted, FitError if the optimum is not certain.
    """
    if not 0 < level < 1:
        raise BadInput(f"level = {level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    start = time.process_time()
    law = law_lib.hold_params(load_law(law) if isinstance(law, str) else law, **(fixed or {}))
    columns, target = law_columns(table, law)
    if bootstrap:
        uncertainty.check_resample_count(bootstrap, len(target))
    chosen = objective_lib.load_objective(objective, delta)
    flops = np.asarray(table["C"], float) if _knows_k(table, columns) else None
    findings = _question_rows(law, columns, target, flops, chosen)
    posed, best = likelihood.fit_scale(law, columns, target, chosen) if objective == "mle" else (None, None)
    posed = posed or pose_problem(law, columns, target, chosen)
    best = best or optimum.minimise_objective(posed)
    groups = (
        choose_groups({name: np.asarray(values) for name, values in table.items()}, law, cluster)
        if isinstance(cluster, str)
        else cluster
    )
    dependence = estimate_dependence(posed, best, np.asarray(groups.labels), groups.column) if groups else None
    boot = uncertainty.bootstrap_fit(posed, best, bootstrap, seed, dependence) if bootstrap else None
    measured_k = None if flops is None else np.median(flops / (columns["N"] * columns["D"]))
    k = float(k or measured_k or FLOPS_PER_PARAM_TOKEN)
    decisions = (
        [decision.decide_allocation(posed, best, boot, C, k, level, held or {}) for C in target_flops] if boot else []
    )
    return Fitted(
        problem=posed,
        best=best,
        bootstrap=boot,
        identifiability=profile.profile_params(posed, best, level, k, dependence) if identify else {},
        decisions=tuple(decisions),
        design=(*findings, *design.fit_findings(posed, best, k, flops, target_flops, held)),
        holdout=hold_out(law, columns, target, chosen, holdout, flops) if holdout else None,
        seconds=time.process_time() - start,
        k=k,
        level=level,
        n_convention=n_convention,
        dependence=dependence,
    )


def _question_rows(
    law: Law, columns: Columns, target: np.ndarray, flops: np.ndarray | None, chosen: objective_lib.Objective
) -> list[Finding]:
    """Findings about units and about the rows; a refusal of the rows names odd units, which may be its cause."""
    questions = units.question_values(columns, target, law.target, flops)
    try:
        return [*questions, *design.row_findings(law, columns, target, flops, chosen.log)]
    except BadInput as refusal:
        raise BadInput("; ".join([str(refusal), *(question.text for question in questions)])) from None


def _knows_k(table: Mapping[str, ArrayLike], columns: Columns) -> bool:
    return (
        "C" in table
        and {"N", "D"} <= set(columns)
        and is_numeric(table["C"])
        and bool(np.all(np.asarray(table["C"], float) > 0))
    )


def fit_chinchilla(
    N: ArrayLike, D: ArrayLike, loss: ArrayLike, delta: float = 1e-3
) -> tuple[chinchilla_optimum.ChinchillaParams, Optimum]:
    """Fit Chinchilla's law by Hoffmann's objective, without intervals: (parameters, optimum)."""
    law = load_law("chinchilla")
    columns, target = law_columns({"N": N, "D": D, "loss": loss}, law)
    design.row_findings(law, columns, target)
    best = optimum.minimise_objective(pose_problem(law, columns, target, objective_lib.huber_log(delta)))
    return chinchilla_optimum.ChinchillaParams(**best.params), best
