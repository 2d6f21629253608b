"""Exact minima of smooth curves through (log N, log loss), for many noisy copies of a curve at once.

Legend: S sizes, R curves over the same sizes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NEAR = 1.0  # in units of x: for a learning rate an octave


class Minima(NamedTuple):
    """The lowest point `at` [R] within the sizes tried, its `value` [R], and whether it lies inside (`interior` [R]).

    `curve` takes points [P] and gives values [P, R].
    """

    at: np.ndarray
    value: np.ndarray
    interior: np.ndarray
    curve: Callable[[np.ndarray], np.ndarray]


def parabola(x: np.ndarray, y: np.ndarray) -> Minima:
    """Minima of least-squares parabolas through y [S, R] at x [S]: biased on wide or lopsided profiles."""
    centre = x.mean()
    bend, slope, height = fitted = np.polyfit(x - centre, y, 2)
    opens_up = bend > 0
    vertex = centre - slope / (2 * np.where(opens_up, bend, np.nan))
    interior = opens_up & (vertex > x[0]) & (vertex < x[-1])

    def curve(at: np.ndarray) -> np.ndarray:
        t = np.atleast_1d(at)[:, None] - centre
        return (bend * t + slope) * t + height

    ends = curve(x[[0, -1]])
    at = np.where(interior, vertex, x[[0, -1]][ends.argmin(axis=0)])
    return Minima(at, np.polyval(fitted, at - centre), interior, curve)


def lowest_parabola(x: np.ndarray, y: np.ndarray) -> tuple[float, float, bool, bool]:
    """(x, value, interior, whether a parabola gave it) of the minimum of one curve y [K] at ascending x [K].

    The parabola goes through the lowest point, its two neighbours and what is within NEAR of it; an infinite y is a
    run that was lost.
    """
    lowest = int(np.argmin(y))
    neighbours = np.abs(np.arange(len(x)) - lowest) <= 1
    near = (neighbours | (np.abs(x - x[lowest]) <= NEAR + 1e-9)) & np.isfinite(y)
    interior = 0 < lowest < len(x) - 1
    if not interior or near.sum() < 3:
        return float(x[lowest]), float(y[lowest]), interior, False
    minimum = parabola(x[near], y[near, None])
    return float(minimum.at[0]), float(minimum.value[0]), bool(minimum.interior[0]), True


def akima(x: np.ndarray, y: np.ndarray) -> Minima:
    """Minima of Akima interpolants through y [S, R] at x [S], which impose no shape (Porian et al. 2024).

    Between two sizes each is a cubic c3 t^3 + c2 t^2 + c1 t + c0: lowest at a size, or where its first derivative
    is zero and the second positive.
    """
    from scipy.interpolate import Akima1DInterpolator  # here: a sweep's parabola does not need it

    curve = Akima1DInterpolator(x, y)
    c3, c2, c1, c0 = curve.c  # each [S - 1, R]
    width = np.diff(x)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(c2**2 - 3 * c3 * c1)
        t = np.where(c2 > 0, -c1 / (c2 + root), (root - c2) / (3 * c3))  # one root in two forms, for precision
        inside = (t > 0) & (t < width)
        turns = np.where(inside, ((c3 * t + c2) * t + c1) * t + c0, np.inf)
    values = np.concatenate([turns, y])
    places = np.concatenate([x[:-1, None] + np.where(inside, t, 0.0), np.broadcast_to(x[:, None], y.shape)])
    lowest = values.argmin(axis=0)[None]
    at, value = (np.take_along_axis(array, lowest, axis=0)[0] for array in (places, values))
    return Minima(at, value, (at > x[0]) & (at < x[-1]), curve)


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], Minima]] = {"akima": akima, "parabola": parabola}
