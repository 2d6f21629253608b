"""Information of runs about a law's parameters, linearised at the fit: sensitivities, and the run that adds most.

A run adds the outer product of its sensitivities to the information; a target with gradient c then has the variance
c' information^-1 c (c-optimal design: Elfving 1952; Chaloner & Verdinelli 1995, sec. 2). New runs are assumed to be as
noisy as the fitted ones. Legend: P fitted points, G further ones, K parameters.
"""

from collections.abc import Callable, Mapping

import numpy as np

from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Columns, Problem

STEP = 1e-4  # of central differences: relative to a term's size, absolute for exponents and logs
LEAST_NOISE = 1e-9  # for exact data, where only the order of the runs counts
FLAT = 1e-6  # a direction of this length, after the others are taken out, adds nothing
GRID = 15  # sizes, and token counts, that `most_informative_runs` tries
LEADING = ("C", "D", "N", "width")  # columns that measure how large a run is, the best first
WIDEN = 4.0  # ... up to this factor beyond the largest fitted ones

Params = dict[str, np.ndarray]


def residual_noise(posed: Problem, best: Optimum) -> float:
    """Robust standard deviation of one run's residual: 1.48 times the median size, corrected for K parameters."""
    spare = max(posed.points - len(best.params), 1)
    typical = 1.4826 * np.median(np.abs(posed.residuals(best.params)))
    return float(max(typical * np.sqrt(posed.points / spare), LEAST_NOISE))


def function_derivatives(posed: Problem, best: Optimum, function: Callable[[Params], np.ndarray]) -> np.ndarray:
    """Derivatives [K, G] by x of a function of the parameters, by central differences.

    `function` maps parameters [2K, 1] each to values [2K, G]. A parameter at its bound counts as known: its derivative
    is zero.
    """
    linear = np.isin(list(posed.law.params), posed.law.linear)
    size = np.maximum(np.abs(best.x), 1e-3 * posed.target.mean())
    steps = STEP * np.where(linear, size, 1.0)
    params = posed.to_params(np.concatenate([best.x + np.diag(steps), best.x - np.diag(steps)]))
    up, down = np.split(np.asarray(function({name: value[:, None] for name, value in params.items()})), 2)
    free = (best.x > posed.lower) & (best.x < posed.upper)
    with np.errstate(invalid="ignore"):  # without a best size both sides are infinite or zero
        return (up - down) / (2 * steps[:, None]) * free[:, None]


def law_sensitivity(
    posed: Problem, best: Optimum, columns: Mapping[str, np.ndarray], sd: float | None = None
) -> np.ndarray:
    """Derivatives [G, K] by x of the law at `columns` [G] (of its log, in log objectives), in units of one run's noise.

    The noise is `sd`, by default that of the fitted residuals; fitted rows with a noise of their own are in its units.
    """
    points = {name: np.asarray(columns[name], float) for name in posed.law.columns}
    each = function_derivatives(posed, best, lambda params: posed.objective.target(posed.law(points, params))).T
    if posed.scale is not None and columns is posed.columns:
        each = each / posed.scale[:, None]
    return each / (sd or residual_noise(posed, best))


def information_matrix(posed: Problem, best: Optimum, sd: float | None = None) -> np.ndarray:
    """Gauss-Newton information [K, K] of the fitted points about x; `sd` as in `law_sensitivity`.

    A prior as wide as the parameters' bounds keeps the variance of an undetermined parameter finite.
    """
    each = law_sensitivity(posed, best, posed.columns, sd)
    kinds = posed.law.params.values()
    widths = [np.log(kind.high / kind.low) if kind.how == "log" else kind.high - kind.low for kind in kinds]
    known = np.where(np.isfinite(widths), widths, 10 * posed.target.mean())
    return each.T @ each + np.diag(known**-2.0)


def covariance_matrix(info: np.ndarray) -> np.ndarray:
    """Inverse of an information matrix; each parameter is scaled by its own information first."""
    scale = 1.0 / np.sqrt(np.diag(info))
    return np.linalg.inv(info * np.outer(scale, scale)) * np.outer(scale, scale)


def variance_gain(spread: np.ndarray, each: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Reduction [G] of the variance gradient' spread gradient by one more run with sensitivities `each` [G, K]."""
    reach = each @ spread
    return (reach @ gradient) ** 2 / (1.0 + np.sum(reach * each, axis=1))


def most_informative_runs(
    posed: Problem, best: Optimum, k: float = FLOPS_PER_PARAM_TOKEN
) -> dict[str, dict[str, float]]:
    """For each parameter the one run (N, D, C = k N D) that would narrow its interval most.

    Tried are runs at most as dear as the dearest fitted one, with N and D from the least fitted value to four times the
    largest; unique tokens, if the law has them, at their geometric mean. {} for a law of other columns than N and D.
    """
    N, D = sizes_and_tokens(posed.columns, k)
    if not len(N) or not set(posed.law.columns) <= {"N", "D", "C", "M", "U"}:
        return {}
    axes = [np.geomspace(column.min(), column.max() * WIDEN, GRID) for column in (N, D)]
    tried = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(2, -1)
    n, d = tried[:, tried.prod(axis=0) <= (N * D).max() * (1 + 1e-9)]
    others = {name: np.full(len(n), np.exp(np.log(column).mean())) for name, column in posed.columns.items()}
    each = law_sensitivity(posed, best, others | {"N": n, "D": d, "C": k * n * d, "M": d / n})
    spread, runs = covariance_matrix(information_matrix(posed, best)), {}
    for i, name in enumerate(posed.law.params):
        row = int(variance_gain(spread, each, param_gradient(posed, best, name, i)).argmax())
        runs[name] = {"N": float(n[row]), "D": float(d[row]), "C": float(k * n[row] * d[row])}
    return runs


def param_gradient(posed: Problem, best: Optimum, name: str, place: int) -> np.ndarray:
    """Gradient [K] by x of a parameter, or of its logarithm if that is searched."""
    if posed.law.params[name].how != "linear" and name not in posed.mixed:
        return np.eye(len(best.x))[place]
    return function_derivatives(posed, best, lambda params: params[name])[:, 0]


def sizes_and_tokens(columns: Columns, k: float = FLOPS_PER_PARAM_TOKEN) -> tuple[np.ndarray, np.ndarray]:
    """(N, D) of the fitted runs, each [P]; from C = k N D and M = D / N if the law has only these, else empty."""
    if {"N", "D"} <= set(columns):
        return columns["N"], columns["D"]
    if {"C", "M"} <= set(columns):
        N = np.sqrt(columns["C"] / (k * columns["M"]))
        return N, N * columns["M"]
    return np.empty(0), np.empty(0)


def run_sizes(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """A measure of each run's size [P], for ordering: C, else N D, else the first of D, N, width; else 1 / loss."""
    if "C" in columns:
        return columns["C"]
    N, D = sizes_and_tokens(columns)
    if len(N):
        return N * D
    leading = next((name for name in LEADING if name in columns), None)
    first = columns[leading] if leading else next(iter(columns.values()))
    if not np.all(first > 0):  # shares of a mixture have no size
        return np.ones(len(first))
    return first if leading else 1.0 / first


def orthonormal_basis(columns: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the span of columns [P, n]."""
    sizes = np.linalg.norm(columns, axis=0)
    vectors, values, _ = np.linalg.svd(columns[:, sizes > 0] / sizes[sizes > 0], full_matrices=False)
    return vectors[:, values > FLAT * values[:1]] if len(values) else vectors


def error_map(slopes: np.ndarray) -> np.ndarray:
    """The map [K, P] from errors of rows to x, by least squares with sensitivities [P, K]."""
    scale = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    return np.linalg.pinv(slopes / scale, rcond=1e-9) / scale[:, None]
