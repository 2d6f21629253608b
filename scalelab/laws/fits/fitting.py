"""From columns of numbers to a fitted law with its certificate, intervals and tests: the entry point of this room.

    from scalelab import laws
    fitted = laws.fit({"N": N, "D": D, "loss": loss}, law="chinchilla", target_flops=[1e24])

Nothing is printed; a mistake raises BadInput, an optimum that can't be certified FitError.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.design import design
from scalelab.laws.fits import agreement
from scalelab.laws.fits.fitted import INTERVAL_LEVEL, Fitted
from scalelab.laws.fits.weights import Weights, weigh
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.law import law as law_lib
from scalelab.laws.law import objective as objective_lib
from scalelab.laws.law.law import Law
from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import Objective
from scalelab.laws.read import units
from scalelab.laws.read.finding import Finding
from scalelab.laws.read.groups import Groups, choose_groups
from scalelab.laws.read.points import flops_factor, is_numeric, law_columns
from scalelab.laws.read.raw_grid import refuse_raw_grid
from scalelab.laws.solve import likelihood, optimum
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns, Problem
from scalelab.laws.trust import misfit, profile, uncertainty
from scalelab.laws.trust.dependence import Dependence, estimate_dependence
from scalelab.laws.trust.holdout import SCORE_RESAMPLES, hold_out
from scalelab.laws.use import decision


def fit(
    table: Mapping[str, ArrayLike],
    law: str | Law = "chinchilla",
    *,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    cluster: str | Groups = "auto",
    target_flops: Sequence[float] = (),
    holdout: int = 0,
    level: float = INTERVAL_LEVEL,
    identify: bool = True,
    k: float | None = None,
    n_convention: str = "N",
    held: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    weights: str | ArrayLike | None = None,
    progress: uncertainty.Progress | None = None,
) -> Fitted:
    """Fit `law` to a table of columns, each [P]: N, D, C, M, U, width, depth, … and loss in nats per token.

    `cluster`: a column, rows of equal values in which share a part of their error, `Groups` of labels [P], "none", or
    "auto": checkpoints of a run and seeds of a setting are found (`groups.find_groups`). `holdout`: so many of the
    largest rows are held out, predicted and scored by a second fit. `held` fixes other columns for the decisions at
    `target_flops`; `fixed` fixes parameters (`law.hold_params`). `weights`: inverse variances [P], or "scale".
    `progress(what, done, of)` is called as resamples, left-out fits, simulated tables and profiles are done.
    BadInput for a table or a design to which the law can't be fitted, FitError if the optimum is not certain.
    """
    start = time.process_time()
    law = law_lib.hold_params(load_law(law) if isinstance(law, str) else law, **(fixed or {}))
    columns, target = law_columns(table, law)
    refuse_raw_grid({**{name: np.asarray(values) for name, values in table.items()}, **columns}, law)
    if bootstrap:
        uncertainty.check_resample_count(bootstrap, len(target))
    chosen = objective_lib.load_objective(objective, delta)
    _check_options(law, chosen, level, weights is not None and holdout > 0)
    flops = flops_column(table, columns)
    findings = _question_rows(law, columns, target, flops, chosen)
    posed, best, weighting = _solve(law, columns, target, chosen, weights)
    _refuse_useless(law, posed, best)
    dependence = _find_dependence(posed, best, table, cluster)
    boot, tested, law_error = misfit.resample_fit(posed, best, bootstrap, seed, dependence, progress)
    k = k or flops_factor(law, columns, flops, held or {}, bool(target_flops))
    profiles = profile.profile_params(posed, best, level, k, dependence, progress, law_error) if identify else {}
    decisions = [decision.decide_allocation(posed, best, boot, C, k, level, held or {}) for C in target_flops if boot]
    scored = None
    if holdout:
        labels, resamples = dependence.labels if dependence else None, min(bootstrap, SCORE_RESAMPLES)
        scored = hold_out(law, columns, target, chosen, holdout, flops, labels=labels, resamples=resamples, level=level)
    told: dict[str, Any] = {
        "identifiability": agreement.agree_with_resamples(profiles, law, best.params, boot, level),
        "design": (*findings, *design.fit_findings(posed, best, k, flops, target_flops, held, dependence)),
        "wider": misfit.find_wider_law(posed, best, dependence) if tested and tested.fails and identify else None,
        "problem": posed, "best": best, "bootstrap": boot, "decisions": tuple(decisions), "holdout": scored, "k": k,
        "level": level, "n_convention": n_convention, "dependence": dependence, "form": tested, "misfit": law_error,
        "weights": weighting,
    }  # fmt: skip
    return Fitted(**told, seconds=time.process_time() - start)


def _check_options(law: Law, chosen: Objective, level: float, weights_held_out: bool) -> None:
    if not 0 < level < 1:
        raise BadInput(f"level = {level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    if law.signed and chosen.log:
        raise BadInput(f"objective {chosen.name}: {law.target} may be negative and has no log; huber is of its value")
    if weights_held_out:
        raise BadInput("--weights has no effect with --holdout: leave one out")


def _refuse_useless(law: Law, posed: Problem, best: Optimum) -> None:
    """BadInput if values that were given make the law worse than a constant loss, e.g. an E above the losses."""
    miss = float(np.sqrt(np.mean(posed.residuals(best.params) ** 2)))
    spread = float(np.std(posed.objective.target(posed.target)))
    if law.held and miss > 2 * spread:
        given = ", ".join(f"{name}={value:g}" for name, value in law.held)
        raise BadInput(
            f"with {given} held, law {law.name!r} misses the losses by {miss:.0%} rms, and their own mean misses them "
            f"by {spread:.0%}: look at what is held, or leave it free"
        )


def _question_rows(
    law: Law, columns: Columns, target: np.ndarray, flops: np.ndarray | None, chosen: Objective
) -> list[Finding]:
    """Findings about units and about the rows; a refusal of the rows names odd units, which may be its cause."""
    questions = units.question_values(columns, target, law.target, flops)
    try:
        return [*questions, *design.row_findings(law, columns, target, flops, chosen.log)]
    except BadInput as refusal:
        raise BadInput("; ".join([str(refusal), *(question.text for question in questions)])) from None


def _solve(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, weights: str | ArrayLike | None
) -> tuple[Problem, Optimum, Weights | None]:
    if objective.name == "mle":
        if weights is not None:
            raise BadInput("--weights has no effect with --objective=mle: leave one out")
        return *likelihood.fit_scale(law, columns, target, objective), None
    posed = pose_problem(law, columns, target, objective)
    best = optimum.minimise_objective(posed)
    if weights is None:
        return posed, best, None
    weighted, weighting = weigh(posed, best, weights)
    return weighted, optimum.minimise_objective(weighted), weighting


def _find_dependence(
    posed: Problem, best: Optimum, table: Mapping[str, ArrayLike], cluster: str | Groups
) -> Dependence | None:
    """The error that rows of one group share; None if rows are not grouped."""
    arrays = {name: np.asarray(values) for name, values in table.items()}
    groups = choose_groups(arrays, posed.law, cluster) if isinstance(cluster, str) else cluster
    return estimate_dependence(posed, best, np.asarray(groups.labels), groups.column) if groups else None


def flops_column(table: Mapping[str, ArrayLike], columns: Columns) -> np.ndarray | None:
    """The FLOPs [P] of runs that have N, D and a C of their own; None where k of C = k N D is not known from them."""
    if not ({"N", "D"} <= set(columns) and "C" in table and is_numeric(table["C"])):
        return None
    flops = np.asarray(table["C"], float)
    return flops if np.all(flops > 0) else None


def fit_chinchilla(
    N: ArrayLike, D: ArrayLike, loss: ArrayLike, delta: float = 1e-3
) -> tuple[chinchilla_optimum.ChinchillaParams, Optimum]:
    """Fit Chinchilla's law by Hoffmann's objective, without intervals: (parameters, optimum)."""
    law = load_law("chinchilla")
    columns, target = law_columns({"N": N, "D": D, "loss": loss}, law)
    design.row_findings(law, columns, target)
    best = optimum.minimise_objective(pose_problem(law, columns, target, objective_lib.huber_log(delta)))
    return chinchilla_optimum.ChinchillaParams(**best.params), best
