"""Fits one law to several groups of rows, and compares the groups: the entry point of this room.

Legend: R draws, P points, G groups, J parameters of the joint law.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.fits.fitted import INTERVAL_LEVEL
from scalelab.laws.fits.fitting import flops_column
from scalelab.laws.fits.groups import difference, joint_fit, pooled_fit, support
from scalelab.laws.fits.groups.difference import ComputeFactor
from scalelab.laws.fits.groups.group_fits import GroupFits
from scalelab.laws.fits.groups.group_rows import GroupRows, check_rows, number_groups, run_labels
from scalelab.laws.fits.groups.joint_fit import Draws
from scalelab.laws.fits.groups.joint_law import GROUP, choose_shared
from scalelab.laws.fits.groups.joint_problem import JointProblem, build_joint_problem
from scalelab.laws.fits.groups.pooling import FEWEST_GROUPS
from scalelab.laws.law import law as law_lib
from scalelab.laws.law import objective as objective_lib
from scalelab.laws.law.law import Law
from scalelab.laws.law.names import load_law
from scalelab.laws.read import units
from scalelab.laws.read.groups import Groups
from scalelab.laws.read.points import flops_factor, law_columns
from scalelab.laws.solve.optimum import Certificate, FitError, Optimum
from scalelab.laws.solve.refit import refit_moved
from scalelab.laws.trust import form
from scalelab.laws.trust.dependence import Dependence, estimate_dependence
from scalelab.laws.trust.discrepancy import Discrepancy, find_discrepancy
from scalelab.laws.trust.uncertainty import Progress, check_resample_count
from scalelab.laws.use import decision

EXPONENTS = ("shared", "separate", "pooled")
MOST_DRAWS = 200  # for a factor of compute by a law without a closed form


def fit_groups(
    table: Mapping[str, ArrayLike],
    labels: Sequence[Any],
    law: str | Law = "chinchilla",
    *,
    by: str = "group",
    exponents: str = "shared",
    shared: Sequence[str] = (),
    against: str | None = None,
    order: Sequence[Any] = (),
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    cluster: str | Groups = "auto",
    target_flops: Sequence[float] = (),
    level: float = INTERVAL_LEVEL,
    k: float | None = None,
    n_convention: str = "N",
    held: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> GroupFits:
    """Fit `law` to a table of columns [P] whose rows belong to groups `labels` [P], and compare each with `against`.

    `exponents`: "shared" by all groups (coefficients are each group's own), "separate", or "pooled": separate ones,
    each shrunk towards the mean, the more the larger its error. `shared` names further parameters of all groups.
    `against`: the group of reference, by default the first of `order` or label. Groups are compared at `target_flops`,
    by default at the largest budget that all reached. Other arguments and errors as in `fit.fit`.
    """
    start = time.process_time()
    _check_choices(exponents, objective, level)
    law = law_lib.hold_params(load_law(law) if isinstance(law, str) else law, **(fixed or {}))
    columns, target = law_columns(table, law)
    if bootstrap:
        check_resample_count(bootstrap, len(target))
    groups = number_groups(labels, order, by, against)
    _check_pooled(exponents, groups.names)
    chosen = objective_lib.load_objective(objective, delta)
    names = choose_shared(law, "shared" if exponents == "shared" else "separate", shared)
    joint = build_joint_problem(law, columns, target, chosen, groups.number, names)
    flops = flops_column(table, columns)
    odd = units.question_values(columns, target, law.target, flops)
    findings = (*odd, *check_rows(joint, groups, flops, alone=exponents != "shared" and not names))
    best, certificates = _fit(joint, groups)
    dependence = _find_dependence(joint, best, table, labels, groups, by, cluster)
    test, untested = _test_exponents(joint, best, groups, dependence, seed)
    *draws, misfit = _resample(joint, best, dependence, bootstrap, seed, progress)
    fits, carried = (_collect(joint, best, each, groups, exponents, (bootstrap, seed, level)) for each in draws)
    k = float(k or flops_factor(law, columns, flops, held or {}, bool(target_flops)))
    tested = None if best.value == 0 else form.judge_form(joint.problem, best, dependence, seed)
    told: dict[str, Any] = {
        "by": by, "names": groups.names, "counts": groups.counts, "reference": groups.names[0], "exponents": exponents,
        "joint": joint, "best": best, "certificates": certificates, "level": level, "seed": seed, "k": k,
        "n_convention": n_convention, "dependence": dependence, "form": tested, "misfit": misfit, "test": test,
        "untested": untested, "design": findings, "carried": carried["draws"],
    }  # fmt: skip
    result = GroupFits(**fits | told)
    compute = _compare_compute(result, flops, target_flops, held or {})
    return dataclasses.replace(result, compute=compute, seconds=time.process_time() - start)


def _check_pooled(exponents: str, names: Sequence[Any]) -> None:
    if exponents == "pooled" and len(names) < FEWEST_GROUPS:
        raise BadInput(
            f"--exponents=pooled: {len(names)} groups say nothing about the spread between groups; "
            f"at least {FEWEST_GROUPS}, or --exponents=shared or separate"
        )


def _check_choices(exponents: str, objective: str, level: float) -> None:
    if not 0 < level < 1:
        raise BadInput(f"level = {level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    if exponents not in EXPONENTS:
        raise BadInput(
            f"--exponents={exponents}: unknown{nearest_hint(exponents, EXPONENTS)}; one of {', '.join(EXPONENTS)}"
        )
    if objective == "mle":
        raise BadInput("--objective=mle has a scale of its own for one table: groups need huber_log or mse_log")


def _fit(joint: JointProblem, groups: GroupRows) -> tuple[Optimum, dict[str, Certificate]]:
    """(the joint optimum, its certificate under "" or one of each group where nothing is shared)."""
    if joint.shared:
        best = joint_fit.fit_joint(joint)
        return best, {"": best.certificate}
    each = joint_fit.fit_each(joint)
    x = joint_fit.combine(joint, each)
    params = {name: float(value) for name, value in joint.problem.to_params(x).items()}
    least = min((one.certificate for one in each), key=lambda certificate: certificate.agree / certificate.starts)
    best = Optimum(params, float(sum(one.value for one in each)), least, x)
    return best, {name: one.certificate for name, one in zip(groups.names, each, strict=True)}


def _find_dependence(
    joint: JointProblem,
    best: Optimum,
    table: Mapping[str, ArrayLike],
    labels: Sequence[Any],
    groups: GroupRows,
    by: str,
    cluster: str | Groups,
) -> Dependence | None:
    """The error that rows of one run share, within each group of rows; None if every row stands alone."""
    runs = run_labels(table, labels, joint.law, groups, by, cluster)
    return estimate_dependence(joint.problem, best, np.asarray(runs.labels), runs.column) if runs else None


def _test_exponents(
    joint: JointProblem, best: Optimum, groups: GroupRows, dependence: Dependence | None, seed: int
) -> tuple[support.SeparateTest | None, str]:
    """(the test of separate exponents against shared ones, why there is none)."""
    law, problem = joint.law, joint.problem
    columns = {name: problem.columns[name] for name in law.columns}
    offsets = [name for name in joint.shared if law.params[name].how == "linear"]
    arguments = law, columns, problem.target, problem.objective, groups.number
    try:
        narrow = build_joint_problem(*arguments, choose_shared(law, "shared", offsets))
        wide = build_joint_problem(*arguments, choose_shared(law, "separate", offsets))
        check_rows(wide, groups, None, alone=not wide.shared)
        if wide.shared == joint.shared:
            wider = best
        elif wide.shared:
            start = {name: support.shared_value(best, name) for name in wide.problem.law.params}
            wider = joint_fit.fit_joint(wide, wide.problem.from_params(start)[None])
        else:
            wider, _ = _fit(wide, groups)
        narrower = best if narrow.shared == joint.shared else joint_fit.fit_joint(narrow)
        return support.check_separate(narrow, narrower, wide, wider, dependence, seed), ""
    except (BadInput, FitError) as refusal:
        return None, str(refusal)


def _collect(
    joint: JointProblem,
    best: Optimum,
    draws: Draws | None,
    groups: GroupRows,
    exponents: str,
    asked: tuple[int, int, float],
) -> dict[str, Any]:
    """Parameters and draws by group; `asked`: how many draws, their seed, the level of intervals."""
    (requested, seed, level), spread = asked, joint.problem.to_params(draws.x) if draws else {}
    found = {
        "params": {name: joint.params_of(best.params, g) for g, name in enumerate(groups.names)},
        "draws": {name: joint.params_of(spread, g) for g, name in enumerate(groups.names)} if draws else {},
        "requested": requested,
        "failed": draws.failed if draws else {},
    }
    return found | (
        pooled_fit.pool_exponents(joint, best, draws, groups.names, seed, level) if exponents == "pooled" else {}
    )


def _resample(
    joint: JointProblem,
    best: Optimum,
    dependence: Dependence | None,
    count: int,
    seed: int,
    progress: Progress | None,
) -> tuple[Draws | None, Draws | None, Discrepancy | None]:
    """(draws, the same with what the law may get wrong, that error); of no draws none."""
    if not count:
        return None, None, None
    residuals = joint.problem.residuals(best.params)
    draws = joint_fit.refit_tables(joint, best.x, residuals, count, seed, dependence, progress)
    misfit = find_discrepancy(joint.problem, best, len(draws.x), seed, dependence, GROUP)
    return draws, _carry(joint, draws, misfit) if misfit else draws, misfit


def _carry(joint: JointProblem, draws: Draws, misfit: Discrepancy) -> Draws:
    """Draws fitted to targets without what the law may get wrong."""
    moved = draws.moved - misfit.at(joint.problem.columns)
    x = refit_moved(joint.problem, draws.x, draws.weights, moved, draws.x - misfit.shift)
    return draws._replace(x=x, moved=moved)


def _compare_compute(
    fits: GroupFits, flops: np.ndarray | None, target_flops: Sequence[float], held: Mapping[str, float]
) -> dict[float, dict[str, ComputeFactor]]:
    """Each group's best loss at each budget, and the factor of compute that it needs for the reference's."""
    law, problem = fits.law, fits.joint.problem
    try:
        difference.check_compute(law, held)
    except BadInput:
        if target_flops:
            raise
        return {}
    if bad := [C for C in target_flops if not 0 < C < float("inf")]:
        raise BadInput(f"--target-flops={bad[0]:g}: a budget is a positive number of FLOPs")
    if not target_flops:
        cost = flops if flops is not None else problem.columns.get("C")
        cost = fits.k * problem.columns["N"] * problem.columns["D"] if cost is None else cost
        masks = [part.mask > 0 for part in fits.joint.parts]
        target_flops = [float(min(cost[mask].max() for mask in masks))]
    return {C: {name: _factor_of(fits, name, C, held) for name in fits.names} for C in target_flops}


def _factor_of(fits: GroupFits, name: str, C: float, held: Mapping[str, float]) -> ComputeFactor:
    law, k = fits.law, fits.k
    point, other = fits.params[name], fits.params[fits.reference]
    loss = float(difference.best_loss(law, _arrays(point), C, k, held)[0])
    factor = (
        1.0
        if name == fits.reference
        else float(difference.compute_factor(law, _arrays(point), _arrays(other), C, k, held)[0])
    )
    if not fits.draws:
        nothing = np.empty(0)
        return ComputeFactor(C, *(difference.make_interval(value, nothing, fits.level) for value in (loss, factor)))
    every = fits.used <= MOST_DRAWS or law.name == "chinchilla" or law.columns == ("C",)
    some = np.arange(fits.used) if every else np.linspace(0, fits.used - 1, MOST_DRAWS).astype(int)
    draws, others = ({n: v[some] for n, v in fits.draws[each].items()} for each in (name, fits.reference))
    losses = difference.best_loss(law, draws, C, k, held)
    factors = difference.compute_factor(law, draws, others, C, k, held) if name != fits.reference else np.ones(1)
    moved, moved_factors = losses, factors
    if fits.misfit:
        carried, rivals = ({n: v[some] for n, v in fits.carried[each].items()} for each in (name, fits.reference))
        own, theirs = (
            _misfit_factor(fits, *each, some, C, held) for each in ((name, carried), (fits.reference, rivals))
        )
        moved = difference.best_loss(law, carried, C, k, held) * own
        if name != fits.reference:
            moved_factors = difference.compute_factor(law, carried, rivals, C, k, held, theirs / own)
    return ComputeFactor(
        C,
        difference.make_interval(loss, losses, fits.level, fits.corrected, moved),
        difference.make_interval(factor, factors, fits.level, fits.corrected, moved_factors),
    )


def _misfit_factor(
    fits: GroupFits, name: str, params: Mapping[str, np.ndarray], some: np.ndarray, C: float, held: Mapping[str, float]
) -> np.ndarray:
    """The factor [R] by which a group's best loss at C FLOPs is off its law, by the chosen draws."""
    assert fits.misfit
    columns: dict[str, Any] = {
        **held,
        "C": np.full(len(some), C),
        GROUP: np.full(len(some), fits.names.index(name) + 1),
    }
    if fits.law.columns != ("C",):
        sizes = decision.optimal_size(fits.law, params, C, fits.k, held)
        sizes = np.where(np.isfinite(sizes) & (sizes > 0), sizes, 1.0)
        columns |= decision.split_columns(sizes, C, fits.k, held)
    delta = fits.misfit.select(some).along(columns)
    losses = fits.law(columns, params)
    return fits.misfit.correct(losses, delta) / losses


def _arrays(params: Mapping[str, float]) -> dict[str, np.ndarray]:
    return {name: np.array([value]) for name, value in params.items()}
