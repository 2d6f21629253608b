"""Each point of the contract that every law meets, as one check; `law.py` lists them.

Legend: P points, K parameters.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np

from scalelab.laws.law.law import Law, ParamKind
from scalelab.laws.law.objective import Objective, huber_log, load_objective
from scalelab.laws.solve.optimum import FitError, minimise_objective, scale_to_range
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns

CHECK_ROWS = 48  # points on which a law is checked
LINE_STEPS = 512  # steps along a parameter's range, to find jumps
EXACT_TOLERANCE = 1e-6  # noise-free data must be met, and identified parameters recovered, to this relative error
SHARP_SPREAD = 1e6  # a parameter is identified where rounding of the data, 1e-16, moves it by less than 1e-10
SHARED_UNITS = {"U": "D"}  # columns with one unit: rescaled together
UNIT_FACTORS = {"loss": 1 / np.log(2)}  # loss in bits; every other column a thousand times smaller
LawParams = Mapping[str, Any]


def require_that(law: Law, holds: Any, problem: str) -> None:
    """Raise AssertionError with the law's name unless `holds`."""
    if not holds:
        raise AssertionError(f"law {law.name!r}: {problem}")


def spread_values(kind: ParamKind, unit: np.ndarray) -> np.ndarray:
    """[0, 1] -> coordinates of `problem`: linear terms are .3 to 1 at the centre, others lie in their `starts`."""
    return 0.3 ** (1 - unit) if kind.how == "linear" else scale_to_range(kind, unit)


def check_values(law: Law, values: np.ndarray, truth: dict[str, float]) -> None:
    """Check the law's values [P] at a given truth: finite and positive."""
    require_that(law, values.shape == (CHECK_ROWS,), f"{CHECK_ROWS} rows give values of shape {values.shape}")
    require_that(law, np.isfinite(values).all(), f"not finite at {truth}")
    require_that(law, law.signed or (values > 0).all(), f"{values.min():.3g} at {truth}: a {law.target} is positive")


def check_rows(law: Law, columns: Columns, candidates: list[dict[str, float]]) -> None:
    """Check that each row's value depends on that row alone."""
    for params in candidates:
        whole = law(columns, params)
        ends = [{name: values[i : i + 1] for name, values in columns.items()} for i in (0, CHECK_ROWS - 1)]
        alone = [law(row, params)[0] for row in ends]
        turned = law({name: values[::-1] for name, values in columns.items()}, params)[::-1]
        same = np.allclose(turned, whole, rtol=1e-12, atol=0) and np.allclose(alone, whole[[0, -1]], rtol=1e-12, atol=0)
        require_that(law, same, "a row's value depends on the other rows or on their order")


def check_broadcast(law: Law, columns: Columns, candidates: list[dict[str, float]]) -> None:
    """Check that parameters [R, 1] broadcast against columns [P]."""
    several = [candidates[i % len(candidates)] for i in range(3)]
    stacked = {name: np.array([[params[name]] for params in several]) for name in law.params}
    try:
        together = law(columns, stacked)
    except (ValueError, TypeError) as error:
        raise AssertionError(f"law {law.name!r}: parameters [R, 1] and columns [P]: {error}") from None
    expected = np.stack([law(columns, params) for params in several])
    same = together.shape == expected.shape and np.allclose(together, expected, rtol=1e-12, atol=0)
    require_that(
        law, same, "parameters [R, 1] and columns [P] don't broadcast to the values of each parameter set, [R, P]"
    )


def _vector(law: Law, columns: Columns) -> Callable[[Any], Any]:
    """The law as a function of one vector of parameters [K]."""
    values = [np.asarray(columns[name], float) for name in law.columns]
    return lambda vector: law.function(*values, **dict(zip(law.params, vector, strict=True))) + np.zeros(CHECK_ROWS)


def check_gradients(law: Law, columns: Columns, candidates: list[dict[str, float]]) -> float:
    """The largest difference of autodiff and central differences, relative to a parameter's whole effect on the law."""
    worst = 0.0
    with jax.enable_x64(True):
        function = _vector(law, columns)
        slopes = jax.jit(jax.jacfwd(function))
        for params in candidates:
            at = np.array([params[name] for name in law.params])
            exact = np.asarray(slopes(at))
            require_that(law, np.isfinite(exact).all(), f"its derivative is not finite at {params}")
            for i, name in enumerate(law.params):
                step = np.zeros(len(at))
                step[i] = 1e-5 * max(abs(at[i]), 1e-3)
                away = [np.asarray(function(at + k * step)) for k in (-2, -1, 1, 2)]
                numeric = (away[0] - 8 * away[1] + 8 * away[2] - away[3]) / (12 * step[i])
                size = np.abs(exact[:, i]).max() + 1e-5 * np.abs(away[1]).max() / max(abs(at[i]), 1e-3)
                error = float(np.abs(numeric - exact[:, i]).max() / size)
                require_that(
                    law,
                    error < EXACT_TOLERANCE,
                    f"autodiff and finite differences by {name} differ by {error:.1e} at {params}",
                )
                worst = max(worst, error)
    return worst


def check_jumps(law: Law, columns: Columns, params: LawParams) -> None:
    """Check that Simpson's integral of the derivative gives the law back, along each searched parameter's range."""
    # Coefficients stay in the size of their terms; the other parameters are themselves, not a solver's coordinates.
    direct = tuple(name for name, kind in law.params.items() if kind.how == "direct")
    posed, function = pose_problem(law, columns, np.ones(CHECK_ROWS), huber_log(), direct), _vector(law, columns)
    along = jax.jit(jax.vmap(lambda at, direction: jax.jvp(function, (at,), (direction,)), in_axes=(0, None)))
    for i, (name, kind) in enumerate(law.params.items()):
        if kind.how == "linear":
            continue
        line = spread_values(kind, np.linspace(0.0, 1.0, 2 * LINE_STEPS + 1))
        x = np.tile(posed.from_params(params), (LINE_STEPS, 1))
        x[:, i] = line[1::2]
        middle = np.stack(list(posed.to_params(x).values()), axis=1)  # [LINE, K]
        direction = np.eye(len(law.params))[i]
        ends = np.exp(line[::2]) if kind.how == "log" else line[::2]
        left, right = (middle + (end - middle[:, i])[:, None] * direction for end in (ends[:-1], ends[1:]))

        def values(at: np.ndarray, direction: np.ndarray = direction) -> tuple[np.ndarray, np.ndarray]:
            with jax.enable_x64(True):
                value, slope = along(at, direction)
            return np.asarray(value), np.asarray(slope)

        with np.errstate(over="ignore", invalid="ignore"):  # powers of powers leave the range of numbers
            jumps = _jumps(values, left, middle, right, (ends[1:] - ends[:-1])[:, None])
        require_that(law, not jumps.any(), f"it jumps where {name} is near {left[jumps.argmax(), i]:.4g}")


def _jumps(
    values: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    left: np.ndarray,
    middle: np.ndarray,
    right: np.ndarray,
    width: np.ndarray,
) -> np.ndarray:
    """Whether the law jumps between left and right [J, K]: its own slope misses it, however short the interval: [J]."""
    low, between, high = (values(at) for at in (left, middle, right))
    missing = np.abs(high[0] - low[0] - width * (low[1] + 4 * between[1] + high[1]) / 6)
    share = np.nan_to_num(missing / np.maximum(np.abs(low[0]), 1e-300))
    rows = np.arange(len(share)), share.argmax(axis=1)

    def left_over(one: tuple, other: tuple, width: np.ndarray) -> np.ndarray:
        return np.abs(other[0] - one[0] - 0.5 * width * (one[1] + other[1]))

    low, high = (low[0][rows], low[1][rows]), (high[0][rows], high[1][rows])
    width = width[:, 0]
    whole = left_over(low, high, width)
    for _ in range(30):
        middle, width = 0.5 * (left + right), 0.5 * width
        here = tuple(each[rows] for each in values(middle))
        first = left_over(low, here, width) > left_over(here, high, width)
        left, right = np.where(first[:, None], left, middle), np.where(first[:, None], middle, right)
        low = np.where(first, low[0], here[0]), np.where(first, low[1], here[1])
        high = np.where(first, here[0], high[0]), np.where(first, here[1], high[1])
    return (share.max(axis=1) > EXACT_TOLERANCE) & (left_over(low, high, width) > 1e-3 * whole)


def check_linear(law: Law, columns: Columns, candidates: list[dict[str, float]]) -> None:
    """Check that second derivatives by coefficients are zero, in units of law / (coefficient x coefficient)."""
    if not law.linear:
        return
    function, names = _vector(law, columns), list(law.params)
    places = np.array([names.index(name) for name in law.linear])
    with jax.enable_x64(True):
        # Forward over forward: a handful of coefficients, and it compiles fastest.
        bend = jax.jit(lambda some, at: jax.jacfwd(jax.jacfwd(lambda s: function(at.at[places].set(s))))(some))
        for params in candidates:
            at = jax.numpy.asarray([params[name] for name in names])
            size = np.outer(at[places], at[places]) / law(columns, params)[:, None, None]
            share = np.abs(np.asarray(bend(at[places], at)) * size).max(axis=0)
            for first, row in zip(law.linear, share, strict=True):
                for second, curved in zip(law.linear, row, strict=True):
                    what = first if first == second else f"{first} times {second}"
                    require_that(
                        law,
                        curved < 1e-9,
                        f"{first} is a Coefficient, but the law is not linear in {what}: make it a Scale(low, high)",
                    )


def _refit(law: Law, columns: Columns, target: np.ndarray) -> dict[str, float]:
    try:
        return minimise_objective(pose_problem(law, columns, target, load_objective(law.objective))).params
    except FitError as error:
        raise AssertionError(f"law {law.name!r}: fitted to its own noise-free values: {error}") from None


def check_recovery(law: Law, columns: Columns, truth: LawParams) -> tuple[float, dict[str, float], tuple[str, ...]]:
    """(prediction error, error of each parameter, names of those that the points don't determine)."""
    target = law(columns, truth)
    fitted = _refit(law, columns, target)
    error = float(np.abs(law(columns, fitted) / target - 1).max())
    require_that(
        law,
        error <= EXACT_TOLERANCE,
        f"fitted to its own noise-free values at {dict(truth)} it misses them by {error:.1e}: other kinds or "
        "narrower starts?",
    )
    recovered = {name: abs(fitted[name] - truth[name]) / max(abs(truth[name]), 1e-9) for name in law.params}
    posed = pose_problem(law, columns, target, Objective("least squares", np.inf, log=not law.signed))
    x = posed.from_params(truth)[None]
    _, gram, _ = posed.derivatives(x, np.ones((1, CHECK_ROWS)))
    spread = np.sqrt(np.abs(np.diag(np.linalg.pinv(gram[0], hermitian=True)))) / np.maximum(np.abs(x[0]), 1e-3)
    flat = {name for name, wide in zip(law.params, spread, strict=True) if wide > SHARP_SPREAD}
    twin = max((recovered[name] for name in law.params if name not in flat), default=0.0) > EXACT_TOLERANCE
    unidentified = tuple(name for name in law.params if recovered[name] > EXACT_TOLERANCE)
    require_that(
        law,
        flat or not twin or _exchangeable(law, columns, truth, fitted),
        f"the same values from {dict(truth)} and from {fitted}",
    )
    return error, recovered, unidentified


def _exchangeable(law: Law, columns: Columns, truth: LawParams, other: LawParams) -> bool:
    """Whether `other` predicts as `truth` does at other points too: then the law itself can't tell them apart."""
    others = {name: values * np.linspace(0.5, 2.0, CHECK_ROWS) for name, values in columns.items()}
    return bool(np.allclose(law(others, other), law(others, truth), rtol=1e-4))


def check_units(law: Law, columns: Columns, truth: LawParams, fixed: Collection[str]) -> dict[str, float]:
    """The relative change of noise-free predictions by each unit."""
    target, changes = law(columns, truth), {}
    for name in law.columns:
        if name in fixed or SHARED_UNITS.get(name) in law.columns:
            continue
        together = {name, *(other for other, unit in SHARED_UNITS.items() if unit == name)}
        factor = UNIT_FACTORS.get(name, 1e-3)
        moved = {column: values * (factor if column in together else 1.0) for column, values in columns.items()}
        changes[name] = float(np.abs(law(moved, _refit(law, moved, target)) / target - 1).max())
        require_that(
            law,
            changes[name] <= EXACT_TOLERANCE,
            f"with {name} in another unit (x {factor:.3g}) the best fit changes by {changes[name]:.1e}: "
            f"a constant with a unit, or a kind too narrow; fixed_units=({name!r},) declares it",
        )
    return changes
