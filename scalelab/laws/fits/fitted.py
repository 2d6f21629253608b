"""A fitted law with its certificate, intervals and tests: what `fit.fit` returns, and its JSON."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.fits.weights import Weights
from scalelab.laws.law import forms
from scalelab.laws.law.law import Law
from scalelab.laws.read.finding import Finding
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import uncertainty
from scalelab.laws.trust.dependence import Dependence
from scalelab.laws.trust.discrepancy import Discrepancy
from scalelab.laws.trust.form import FormTest
from scalelab.laws.trust.holdout import Holdout
from scalelab.laws.trust.misfit import WiderLaw
from scalelab.laws.trust.profile import ParamProfile
from scalelab.laws.trust.uncertainty import Bootstrap, Prediction
from scalelab.laws.use import decision
from scalelab.laws.use.decision import Decision

INTERVAL_LEVEL = 0.9
CLOSE_BASIN = 0.01  # another optimum within 1 % of the objective: the data hardly choose between the two
# BCa: in simulated studies its 90 % cover 87 to 95 %, plain percentiles 93 to 97 % (checks/results/coverage.md).
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
    `dependence`: the error that rows of one run share, None if rows are independent. `form`: the test of the law's
    form, None where too few rows are left to tell; `misfit`: what the law may get wrong, which all intervals carry;
    `wider`: the wider law that fits better where the test fails. `weights`: how rows with a noise of their own are
    weighted. `design` holds the weak points of the runs themselves, `holdout` how well the small runs predict the
    largest.
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
    form: FormTest | None = None
    misfit: Discrepancy | None = None
    wider: WiderLaw | None = None
    weights: Weights | None = None
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
        if self.form and self.form.fails:
            warnings.append(
                f"the form of law {self.law.name!r} fails its test: intervals carry its misfit, single numbers do not"
            )
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
            "weights": self.weights.to_json() if self.weights else None,
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
            "form": self.form.to_json() if self.form else None,
            "wider_law": self.wider._asdict() if self.wider else None,
            "misfit": self.misfit.to_json() if self.misfit else None,
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
    if boot is None:
        return point, {}
    sampled, carried = (exponents(draws["alpha"], draws["beta"]) for draws in (boot.sampled, boot.params))
    return point, {
        name: {
            "percentile": uncertainty.widen(
                uncertainty.central_interval(values, level), point[name], values, carried[name], level
            ),
            "se": float(np.std(values)),
        }
        for name, values in sampled.items()
    }
