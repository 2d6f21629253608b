"""The contract that every law meets.

Legend: P points, K parameters, G candidates for the truth.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.law.law import Law, law_of
from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns
from scalelab.testing import law_checks
from scalelab.testing.law_checks import CHECK_ROWS, LawParams, require_that

CANDIDATE_COUNT = 256  # parameter sets tried as the truth
COLUMN_RANGES = {
    "N": (1e6, 1e11), "D": (1e9, 1e12), "U": (1e9, 1e12), "C": (1e16, 1e24), "M": (2.0, 500.0),
    "width": (128.0, 8192.0), "depth": (4.0, 64.0), "loss": (1.8, 4.0),
    "P_w": (2.0, 16.0), "P_a": (2.0, 16.0), "P_kv": (2.0, 16.0), "N_v": (1e6, 1e9),
    "P": (1.0, 8.0), "batch": (8.0, 8192.0), "lr": (1e-4, 3e-2), "batch_tokens": (1e5, 1e7),
    "experts": (1.0, 256.0), "granularity": (1.0, 16.0), "sparsity": (0.05, 0.98), "activation": (0.008, 0.9),
    "r1": (0.05, 0.9), "r2": (0.05, 0.9), "r3": (0.05, 0.9),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LawReport:
    """The measurements of `check_law` on a law that meets the contract. All errors are relative.

    `truth` made the data; `recovered` is the error of each parameter, `unidentified` names those that the data don't
    determine (another value predicts equally); `units` is the largest change of predictions by each rescaled column.
    """

    law: str
    truth: dict[str, float]
    prediction_error: float
    recovered: dict[str, float]
    unidentified: tuple[str, ...]
    gradient_error: float
    units: dict[str, float]


def check_law(
    function: str | Callable[..., Any] | Law,
    *,
    truth: LawParams | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    fixed_units: Collection[str] = (),
) -> LawReport:
    """Check that a law (a name, `pkg.mod:fn`, a function, a `Law`) can be fitted here.

    AssertionError names what is wrong. The contract: the signature is readable; the law is finite and positive over
    plausible columns; a row's value depends on no other row; parameters [R, 1] broadcast against columns [P];
    derivatives are right and no parameter makes the law jump; it is linear in each Coefficient; a fit to its own
    noise-free values meets them to 1e-6, and recovers identified parameters; and a column's unit changes no prediction.

    `ranges` (low, high) of columns are known for the usual names; `truth` is searched within the parameters' kinds
    unless given; `fixed_units` declares columns whose unit is built into the law.
    """
    law = _read(function)
    columns = _columns(law, ranges or {})
    candidates = _candidates(law, columns, truth)
    law_checks.check_rows(law, columns, candidates)
    law_checks.check_broadcast(law, columns, candidates)
    gradient_error = law_checks.check_gradients(law, columns, candidates)
    law_checks.check_jumps(law, columns, candidates[0])
    law_checks.check_linear(law, columns, candidates)
    chosen = candidates[0]
    prediction_error, recovered, unidentified = law_checks.check_recovery(law, columns, chosen)
    units = law_checks.check_units(law, columns, chosen, fixed_units)
    return LawReport(law.name, dict(chosen), prediction_error, recovered, unidentified, gradient_error, units)


def _read(function: str | Callable[..., Any] | Law) -> Law:
    if isinstance(function, Law):
        return function
    try:
        return load_law(function) if isinstance(function, str) else law_of(function)
    except BadInput as mistake:
        raise AssertionError(str(mistake)) from None


def _columns(law: Law, ranges: Mapping[str, tuple[float, float]]) -> Columns:
    """Plausible columns [P]: a Sobol set, even in logs."""
    ranges_by_name = COLUMN_RANGES | dict(ranges)
    if missing := [name for name in law.columns if name not in ranges_by_name]:
        raise BadInput(
            f"law {law.name!r}: what is plausible for {missing[0]}? Pass ranges={{{missing[0]!r}: (low, high)}}"
        )
    unit = _draw_sobol(len(law.columns), 64, seed=1)[:CHECK_ROWS]
    return {
        name: ranges_by_name[name][0] * (ranges_by_name[name][1] / ranges_by_name[name][0]) ** unit[:, i]
        for i, name in enumerate(law.columns)
    }


def _draw_sobol(dimensions: int, count: int, seed: int) -> np.ndarray:
    """A scrambled Sobol set in the unit cube, [count, dimensions]."""
    from scipy.stats import qmc  # here: it takes 0.8 s

    return qmc.Sobol(dimensions, seed=seed).random(count)


def _candidates(law: Law, columns: Columns, truth: LawParams | None) -> list[dict[str, float]]:
    """Up to five parameter sets where the law makes sense; first the one that the points determine best."""
    if truth is not None:
        law_checks.check_values(law, law(columns, truth), dict(truth))
        return [dict(truth)]
    posed = pose_problem(law, columns, np.ones(CHECK_ROWS), Objective("least squares", np.inf, log=not law.signed))
    unit = _draw_sobol(len(law.params), CANDIDATE_COUNT, seed=0)
    x = np.stack([law_checks.spread_values(kind, unit[:, i]) for i, kind in enumerate(law.params.values())], axis=1)
    params = posed.to_params(x)
    values = np.stack([law(columns, {name: v[g] for name, v in params.items()}) for g in range(CANDIDATE_COUNT)])
    require_that(
        law,
        values.shape[1:] == (CHECK_ROWS,),
        f"{CHECK_ROWS} rows give values of shape {values.shape[1:]}",
    )
    finite = np.isfinite(values).all(axis=1)
    require_that(
        law, finite.any(), f"not finite over plausible columns at any of {CANDIDATE_COUNT} parameter sets of its kinds"
    )
    sensible = finite & ((values > 0).all(axis=1) | law.signed)
    require_that(law, sensible.any(), f"zero or negative: a {law.target} is positive over plausible columns")
    sensible &= np.abs(values).max(axis=1) < 1e3 * np.abs(values).min(axis=1)
    require_that(law, sensible.any(), f"its {law.target} varies by more than 1,000 times over plausible columns")
    (chosen,) = np.nonzero(sensible)
    _, gram, _ = posed.derivatives(x[chosen], np.ones((len(chosen), CHECK_ROWS)))
    size = np.where([kind.how == "linear" for kind in law.params.values()], x[chosen], 1.0)
    scaled = np.where(np.isfinite(gram), gram, 0.0) * size[:, :, None] * size[:, None]
    best = chosen[np.argsort(-np.linalg.eigvalsh(scaled)[:, 0], kind="stable")[:5]]
    return [{name: float(values[g]) for name, values in params.items()} for g in best]
