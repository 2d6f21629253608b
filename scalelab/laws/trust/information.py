"""What runs say about a law's parameters, linearised at the fit: sensitivities, information, and the run that adds most.

A run adds the outer product of its sensitivities to the information; a target with gradient c then has the variance
c' information^-1 c (c-optimal design: Elfving 1952; Chaloner & Verdinelli 1995, sec. 2). New runs are taken to be as noisy
as the fitted ones. Legend: P fitted points, G further ones, K parameters.
"""

from collections.abc import Callable, Mapping

import numpy as np

from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Columns, Problem

STEP = 1e-4  # of central differences, relative to a term's size; of exponents and logs as it is
LEAST_NOISE = 1e-9  # exact data: what counts then is only which run adds most
GRID = 15  # sizes and token counts that `most_informative_runs` tries, each
WIDEN = 4.0  # ... up to this much beyond the largest fitted ones

Params = dict[str, np.ndarray]


def residual_noise(posed: Problem, best: Optimum) -> float:
    """Standard deviation of one run's residual, robustly: 1.48 times the median size, for the points left beside K."""
    spare = max(posed.points - len(best.params), 1)
    typical = 1.4826 * np.median(np.abs(posed.residuals(best.params)))
    return float(max(typical * np.sqrt(posed.points / spare), LEAST_NOISE))


def function_derivatives(posed: Problem, best: Optimum, of: Callable[[Params], np.ndarray]) -> np.ndarray:
    """Derivatives [K, G] by x of a function of the parameters that maps [2K, 1] each to [2K, G], by central differences.

    A parameter at its bound counts as known: its derivative is zero.
    """
    linear = np.isin(list(posed.law.params), posed.law.linear)
    size = np.maximum(np.abs(best.x), 1e-3 * posed.target.mean())
    steps = STEP * np.where(linear, size, 1.0)
    params = posed.to_params(np.concatenate([best.x + np.diag(steps), best.x - np.diag(steps)]))
    up, down = np.split(np.asarray(of({name: value[:, None] for name, value in params.items()})), 2)
    free = (best.x > posed.lower) & (best.x < posed.upper)
    with np.errstate(invalid="ignore"):  # no best size: infinite, or zero, on both sides
        return (up - down) / (2 * steps[:, None]) * free[:, None]


def law_sensitivity(
    posed: Problem, best: Optimum, columns: Mapping[str, np.ndarray], sd: float | None = None
) -> np.ndarray:
    """Derivatives [G, K] by x of the law at `columns` [G] (of its log, in log objectives), in units of one run's noise.

    That is `sd`, or what the fitted residuals show.
    """
    own = {name: np.asarray(columns[name], float) for name in posed.law.columns}
    each = function_derivatives(posed, best, lambda params: posed.objective.target(posed.law(own, params))).T
    return each / (sd or residual_noise(posed, best))


def information_matrix(posed: Problem, best: Optimum, sd: float | None = None) -> np.ndarray:
    """Gauss-Newton information [K, K] of the fitted points about x; `sd` as in `law_sensitivity`.

    A prior as wide as the range that global search covers keeps a parameter finite that the data leave open.
    """
    each = law_sensitivity(posed, best, posed.columns, sd)
    kinds = posed.law.params.values()
    widths = [np.log(kind.high / kind.low) if kind.how == "log" else kind.high - kind.low for kind in kinds]
    known = np.where(np.isfinite(widths), widths, 10 * posed.target.mean())
    return each.T @ each + np.diag(known**-2.0)


def covariance_matrix(info: np.ndarray) -> np.ndarray:
    """Inverse of an information matrix, each parameter scaled by its own before."""
    scale = 1.0 / np.sqrt(np.diag(info))
    return np.linalg.inv(info * np.outer(scale, scale)) * np.outer(scale, scale)


def variance_gain(spread: np.ndarray, each: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """How much one more run with sensitivities `each` [G, K] lowers the variance gradient' spread gradient: [G]."""
    reach = each @ spread
    return (reach @ gradient) ** 2 / (1.0 + np.sum(reach * each, axis=1))


def most_informative_runs(
    posed: Problem, best: Optimum, k: float = FLOPS_PER_PARAM_TOKEN
) -> dict[str, dict[str, float]]:
    """For each parameter the one run (N, D, C = k N D) that would narrow its interval most.

    Of runs no dearer than the dearest fitted one, no smaller or shorter than the least, N and D up to four times the
    largest; unique tokens, where the law has them, at their geometric mean. {} for a law that isn't one of N and D.
    """
    N, D = sizes_and_tokens(posed.columns, k)
    if not len(N) or not set(posed.law.columns) <= {"N", "D", "C", "M", "U"}:
        return {}
    axes = [np.geomspace(column.min(), column.max() * WIDEN, GRID) for column in (N, D)]
    tried = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(2, -1)
    n, d = tried[:, tried.prod(axis=0) <= (N * D).max() * (1 + 1e-9)]
    others = {name: np.full(len(n), np.exp(np.log(column).mean())) for name, column in posed.columns.items()}
    each = law_sensitivity(posed, best, others | {"N": n, "D": d, "C": k * n * d, "M": d / n})
    spread, found = covariance_matrix(information_matrix(posed, best)), {}
    for i, name in enumerate(posed.law.params):
        row = int(variance_gain(spread, each, param_gradient(posed, best, name, i)).argmax())
        found[name] = {"N": float(n[row]), "D": float(d[row]), "C": float(k * n[row] * d[row])}
    return found


def param_gradient(posed: Problem, best: Optimum, name: str, place: int) -> np.ndarray:
    """Gradient [K] by x of a parameter; of its logarithm, where that is what is searched."""
    if posed.law.params[name].how != "linear":
        return np.eye(len(best.x))[place]
    return function_derivatives(posed, best, lambda params: params[name])[:, 0]


def sizes_and_tokens(columns: Columns, k: float = FLOPS_PER_PARAM_TOKEN) -> tuple[np.ndarray, np.ndarray]:
    """(N, D) [P] of the fitted runs, from C = k N D and M = D / N where the law knows only these; empty without either."""
    if {"N", "D"} <= set(columns):
        return columns["N"], columns["D"]
    if {"C", "M"} <= set(columns):
        N = np.sqrt(columns["C"] / (k * columns["M"]))
        return N, N * columns["M"]
    return np.empty(0), np.empty(0)
