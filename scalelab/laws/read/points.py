"""The numbers a law is fitted to: columns of one length, each value finite and positive (else BadInput names it), and
the rules by which columns that a table lacks follow from others."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.law import Law, logs_of
from scalelab.laws.solve.problem import Columns

SAME_VALUE = 0.01  # steps are whole numbers, so runs of equal N and D differ by less
LARGEST = 1e100  # powers of what lies beyond it, or below its inverse, are no floats
WIDEST_VALUE = 0.05
ONE_SHARE = 1.1  # active parameters as shares of all that differ by less than this factor are one share
K = FLOPS_PER_PARAM_TOKEN
Rule = tuple[str, tuple[str, ...], str, Callable[..., float]]
RULES: tuple[Rule, ...] = (  # each after those it needs; a token costs its active parameters' FLOPs
    ("D", ("M", "N"), "D = M N", lambda M, N: M * N),
    ("D", ("C", "N_active"), "D = C / 6N_active", lambda C, N: C / (K * N)),
    ("N", ("C", "D"), "N = C / 6D", lambda C, D: C / (K * D)),
    ("D", ("C", "N"), "D = C / 6N", lambda C, N: C / (K * N)),
    ("C", ("N_active", "D"), "C = 6N_active D", lambda N, D: K * N * D),
    ("C", ("N", "D"), "C = 6ND", lambda N, D: K * N * D),
    ("M", ("D", "N"), "M = D / N", lambda D, N: D / N),
    ("sparsity", ("experts_per_token", "experts"), "sparsity = 1 - active experts/experts", lambda k, E: 1 - k / E),
    (
        "activation",
        ("experts_per_token", "experts", "shared_experts"),
        "activation = active experts/experts, shared ones in both",
        lambda k, E, shared: (k + shared) / (E + shared),
    ),
    ("activation", ("experts_per_token", "experts"), "activation = active experts/experts", lambda k, E: k / E),
)


def derivation_rules(known: Collection[str], size: str = "") -> list[Rule]:
    """The rules that derive what is not `known`, in order; N of all parameters (`size` "total") and C don't give each
    other."""
    fields, used = set(known), []
    for rule in RULES:
        field, sources, _, _ = rule
        costs_all = size == "total" and {"N", "C"} <= {field, *sources}
        if field not in fields and set(sources) <= fields and not costs_all:
            fields.add(field)
            used.append(rule)
    return used


def flops_factor(
    law: Law, columns: Mapping[str, Any], flops: np.ndarray | None, held: Mapping[str, float], spends: bool
) -> float:
    """The k of C = k N D: the median of the rows' own C / (N D), 6 where C [P] is not known.

    Where N counts all parameters, idle experts' too, C is 6 times the active ones: `active_share` among the `held`
    says which share of N these are. BadInput if a budget is to be split (`spends`) and the share is not known, or
    varies.
    """
    share = held.get("active_share")
    if law.size == "total" and share is not None:
        if not 0 < share <= 1:
            raise BadInput(f"active_share={share:g}: active parameters are a share of all, above 0 and at most 1")
        return K * share
    if flops is None:
        if spends and law.size == "total":
            raise BadInput(
                "N counts all parameters, and FLOPs are of the active ones: the table needs a column of these or of "
                "FLOPs, or --target-values=active_share=X"
            )
        return K
    factors = flops / (columns["N"] * columns["D"])
    if spends and law.size == "total" and factors.max() > ONE_SHARE * factors.min():
        low, high = (end / K for end in (factors.min(), factors.max()))
        raise BadInput(
            f"active parameters are {low:.3g} to {high:.3g} of all in these rows, so that N and D do not give FLOPs: "
            "--target-values=active_share=X says which share the best model has"
        )
    return float(np.median(factors))


def law_columns(table: Mapping[str, ArrayLike], law: Law) -> tuple[Columns, np.ndarray]:
    """(the law's columns, its target) as float64 [P]; C = 6 N D and M = D / N where the table lacks them.

    BadInput names the first value that isn't finite and positive, or the column that is missing.
    """
    given = {name: np.asarray(values, float) for name, values in table.items() if is_numeric(values)}
    if "N" in given and "D" in given and given["N"].shape == given["D"].shape:
        with np.errstate(all="ignore"):  # a zero, and a product that is too large, are refused below, by name
            given.setdefault("C", FLOPS_PER_PARAM_TOKEN * given["N"] * given["D"])
            given.setdefault("M", given["D"] / given["N"])
    wanted = (*law.columns, law.target)
    if missing := [name for name in wanted if name not in given]:
        raise BadInput(
            f"law {law.name!r} ({law.equation}) needs {', '.join(wanted)}; the table has no {', '.join(missing)}"
        )
    *columns, target = _check_allowed(law, {name: given[name] for name in wanted})
    return dict(zip(law.columns, columns, strict=True)), target


def is_numeric(values: ArrayLike) -> bool:
    """Whether a column can be read as numbers."""
    try:
        np.asarray(values, float)
    except (TypeError, ValueError):
        return False
    return True


def _check_allowed(law: Law, columns: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The columns in order, checked as `check_positive` does but for zeros and signs that the law allows."""
    freed = {name for name in columns if law.allows(name, 0.0)}
    for name in freed:
        bad = np.flatnonzero([not law.allows(name, value) for value in columns[name]])
        if len(bad):
            raise BadInput(f"{name}[{bad[0]}] = {columns[name][bad[0]]:g}: {describe_allowed(law, name)}")
    check_positive(**{name: np.ones_like(values) if name in freed else values for name, values in columns.items()})
    return list(columns.values())


def describe_allowed(law: Law | None, field: str) -> str:
    """What a field's values must be, for an error line."""
    if law is None or not law.allows(field, 0.0):
        return "it must be finite and positive"
    return "it must be finite" if law.allows(field, -1.0) else "it must be finite, and zero or more"


def check_positive(**columns: ArrayLike) -> list[np.ndarray]:
    """The columns as float64 arrays of one length; BadInput names the first value that isn't finite and positive."""
    arrays = {name: np.asarray(value, float) for name, value in columns.items()}
    shapes = {name: value.shape for name, value in arrays.items()}
    if len(set(shapes.values())) > 1 or any(value.ndim != 1 for value in arrays.values()):
        raise BadInput(f"{', '.join(arrays)} must be lists of one length, not of shapes {list(shapes.values())}")
    for name, value in arrays.items():
        bad = np.flatnonzero(~(np.isfinite(value) & (value > 0)))
        if len(bad):
            raise BadInput(f"{name}[{bad[0]}] = {value[bad[0]]:g}: each must be finite and positive")
        far = np.flatnonzero((value < 1 / LARGEST) | (value > LARGEST))
        if len(far):
            raise BadInput(f"{name}[{far[0]}] = {value[far[0]]:g}: no run has that; was the table damaged?")
    return list(arrays.values())


def group_near(values: ArrayLike, tolerance: float) -> np.ndarray:
    """The group [P] of each value: neighbours less than `tolerance` apart share one, their geometric mean."""
    values = np.asarray(values, float)
    order = np.argsort(values)
    logs = logs_of(values)
    starts = np.append(True, np.diff(logs[order]) > np.log1p(tolerance))
    label = np.empty(len(values), int)
    label[order] = np.cumsum(starts) - 1
    means = np.bincount(label, logs) / np.bincount(label)
    means = np.exp(means) if np.all(values > 0) else means
    return means[label]


def merge_near(values: ArrayLike) -> np.ndarray:
    """The values [P] with neighbours less than SAME_VALUE apart replaced by their mean, unless they chain to a range
    wider than WIDEST_VALUE; a value without neighbours stays as it is, to nine digits."""
    plain = np.array([float(f"{value:.9g}") for value in np.asarray(values, float)])
    near = group_near(plain, SAME_VALUE)
    low, high = (np.full(len(plain), end) for end in (np.inf, 0.0))
    _, label = np.unique(near, return_inverse=True)
    np.minimum.at(low, label, plain)
    np.maximum.at(high, label, plain)
    if np.any(high > (1 + WIDEST_VALUE) * low):
        return plain
    return np.where(low[label] == high[label], plain, near)
