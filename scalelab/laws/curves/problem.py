"""The fit of a law of curves as the solver sees it, with derivatives by hand: a term of many changes is summed once.

Coordinates are (E, a, alpha, coefficient of the annealing term, its shape), with a = A exp(-alpha mean log S1), the
logarithm of `memory`, and for C of `multi_power` the logarithm it has if LRs are divided by their mean.
Legend: R problems, K parameters, M shape parameters, P rows, G seeds.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scalelab.laws.law import curve_forms as forms
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.problem import Columns, Derivatives, Moved, Problem, coordinate_bounds

SHAPE = 4  # place of the first shape parameter
Term = tuple[np.ndarray, np.ndarray, np.ndarray]
Kernel = Callable[[np.ndarray, bool], Term]  # (shape [M], with derivatives) -> (term [P], by shape [M, P], [M, M, P])


def annealing_kernel(columns: Columns) -> Kernel:
    """S2 and its derivatives by log memory."""
    drop, age = columns["drop"], columns["age"]

    def kernel(shape: np.ndarray, slopes: bool) -> Term:
        m = np.exp(shape[0])
        left = m * np.exp(age * np.log1p(-1.0 / m))
        term = m * drop.sum(axis=1) - (drop * left).sum(axis=1)
        if not slopes:
            return term, term[None], term[None, None]
        # left = m lambda^age; `rate` is the derivative of log lambda by log m, `bend` the second one.
        rate, bend = 1.0 / (m - 1.0), -m / (m - 1.0) ** 2
        grown = left * age * rate
        first = term - (drop * grown).sum(axis=1)
        second = term - (drop * (grown * (2.0 + age * rate) + left * age * bend)).sum(axis=1)
        return term, first[None], second[None, None]

    return kernel


def multi_power_kernel(columns: Columns) -> Kernel:
    """The sum over changes of `multi_power`, and its derivatives by (log C, beta, gamma); LRs over their mean."""
    drop, area, lr = (columns[name] for name in ("drop", "area", "lr"))
    log_area, log_lr = np.log(np.maximum(area, 1e-300)), np.log(lr) - mean_log_lr(columns)

    def kernel(shape: np.ndarray, slopes: bool) -> Term:
        c, beta, gamma = shape
        u = np.exp(c - gamma * log_lr + log_area)
        v = np.log1p(u)
        left = np.exp(-beta * v) * drop
        term = drop.sum(axis=1) - left.sum(axis=1)
        if not slopes:
            return term, term[None], term[None, None]
        share = u / (1.0 + u)
        by_c = beta * left * share
        by_cc = by_c * (1.0 - share - beta * share)
        by_cb = left * share * (1.0 - beta * v)
        first = [by_c, left * v, -log_lr * by_c]
        second = [[by_cc, by_cb, -log_lr * by_cc], [by_cb, -left * v * v, -log_lr * by_cb]]
        second.append([second[0][2], second[1][2], log_lr**2 * by_cc])
        return term, np.sum(first, axis=2), np.sum(second, axis=3)

    return kernel


def mean_log_lr(columns: Columns) -> float:
    """Mean logarithm of the LR after changes; 0 without changes."""
    changed = columns["drop"] != 0
    return float(np.mean(np.log(columns["lr"][changed]))) if changed.any() else 0.0


KERNELS = {forms.annealing: annealing_kernel, forms.multi_power: multi_power_kernel}


def build_curve_problem(law: Law, columns: Columns, target: np.ndarray, objective: Objective) -> Problem:
    """Pose the fit of a law of `forms` to losses `target` [P]; residuals are of logs."""
    base = columns[law.columns[0]]  # S1, or the step
    mean, y = np.log(base).mean(), np.log(target)
    size = np.log(base) - mean
    kernel = KERNELS[law.function](columns) if law.function in KERNELS else None
    reference = mean_log_lr(columns) if law.function is forms.multi_power else 0.0
    logs = [place for place, kind in enumerate(law.params.values()) if kind.how == "log"]

    def evaluate(x: np.ndarray, slopes: bool) -> tuple[np.ndarray, np.ndarray, Term | None]:
        """(loss [R, P], centred power [R, P], the annealing term [R, ...])."""
        power = np.exp(-x[:, 2:3] * size)
        loss = x[:, 0:1] + x[:, 1:2] * power
        if kernel is None:
            return loss, power, None
        terms = [kernel(row[SHAPE:], slopes) for row in x]
        term, first, second = (np.stack([each[i] for each in terms]) for i in range(3))
        return loss - x[:, 3:4] * term, power, (term, first, second)

    def value(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> np.ndarray:
        with np.errstate(all="ignore"):  # a law below zero gets value inf
            total = np.sum(weights * objective.penalty(np.log(evaluate(x, False)[0]) - y - moved), axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def linearise(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Term | None]:
        loss, power, term = evaluate(x, True)
        slopes = [np.ones_like(loss), power, -x[:, 1:2] * size * power]
        if term:
            slopes += [-term[0], *np.moveaxis(-x[:, 3:4, None] * term[1], 1, 0)]
        return np.log(loss) - y, np.stack(slopes, axis=1) / loss[:, None], loss, power, term

    def derivatives(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        with np.errstate(all="ignore"):  # `newton.descend` drops starts whose derivative isn't finite
            r, jac, loss, power, term = linearise(x)
            r = r - moved
            pull = weights * objective.slope(r)

            def gram(scale: np.ndarray) -> np.ndarray:
                return (jac * scale[:, None]) @ jac.transpose(0, 2, 1)

            hessian = gram(weights * objective.bend(r) - pull) + _law_bend(x, pull / loss, power, size, term)
            return (jac @ pull[..., None])[..., 0], gram(weights * objective.weight(r)), hessian

    def basis(searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ones = np.ones((len(searched), len(y)))
        terms = [ones, np.exp(-searched[:, :1] * size)]
        if kernel:
            terms.append(-np.stack([kernel(row[1:], False)[0] for row in searched]))
        return np.stack(terms, axis=1), 0 * ones

    def to_params(x: np.ndarray) -> dict[str, np.ndarray]:
        values = list(np.moveaxis(np.asarray(x, float), -1, 0))
        values[1] = values[1] * np.exp(values[2] * mean)
        for place in logs:
            values[place] = np.exp(values[place] + (reference * values[-1] if reference else 0.0))
        return dict(zip(law.params, values, strict=True))

    def from_params(params: Mapping[str, Any]) -> np.ndarray:
        values = list(np.broadcast_arrays(*(np.asarray(params[name], float) for name in law.params)))
        values[1] = values[1] * np.exp(-values[2] * mean)
        for place in logs:
            values[place] = np.log(values[place]) - (reference * values[-1] if reference else 0.0)
        return np.stack(values, -1)

    return Problem(
        law, objective, columns, target, *coordinate_bounds(law), value, derivatives, basis, to_params, from_params,
        lambda x: linearise(x)[:2], ("A", "C"),
    )  # fmt: skip


def _law_bend(x: np.ndarray, share: np.ndarray, power: np.ndarray, size: np.ndarray, term: Term | None) -> np.ndarray:
    """Second derivatives of the law [R, K, K], summed over rows with weights `share` [R, P]."""
    result = np.zeros((len(x), x.shape[1], x.shape[1]))
    pulled = share * power * size
    result[:, 1, 2] = result[:, 2, 1] = -pulled.sum(axis=1)
    result[:, 2, 2] = x[:, 1] * (pulled @ size)
    if term:
        cross = -np.einsum("rmp,rp->rm", term[1], share)
        result[:, 3, SHAPE:] = result[:, SHAPE:, 3] = cross
        result[:, SHAPE:, SHAPE:] = -x[:, 3, None, None] * np.einsum("rmnp,rp->rmn", term[2], share)
    return result
