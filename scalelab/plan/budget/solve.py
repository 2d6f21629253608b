"""Roots and minima of many rows at once: bisection and golden section on arrays [R]."""

from collections.abc import Callable

import numpy as np

DECADES, HALVINGS = 2, 40
SECTIONS = 45  # of a range of e^7: to 1e-9 of log x, where a smooth minimum is flat in double precision
GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0


def find_first_true(holds: Callable[[np.ndarray], np.ndarray], low: float, high: float, rows: int) -> np.ndarray:
    """The least x [R] between two positive ends where `holds` is true, to 1e-11 of log x; inf if it never is.

    The search goes up in steps of two decades, then bisects: far beyond a solution a law may have no finite value.
    """
    places = np.geomspace(low, high, 1 + round(np.log10(high / low) / DECADES))
    bottom, top = np.zeros(rows), np.full(rows, np.inf)
    for below, above in zip([low, *places], places, strict=False):
        new = np.isinf(top) & holds(np.full(rows, above))
        bottom, top = np.where(new, np.log(below), bottom), np.where(new, np.log(above), top)
        if np.isfinite(top).all():
            break
    is_found = np.isfinite(top)
    top = np.where(is_found, top, 0.0)
    for _ in range(HALVINGS):
        middle = 0.5 * (bottom + top)
        true = holds(np.exp(middle))
        bottom, top = np.where(true, bottom, middle), np.where(true, middle, top)
    return np.where(is_found, np.exp(top), np.inf)


def minimise_unimodal(value: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where `value` is least between positive low and high [R]; it must fall, then rise.

    It may be infinite on the low side only.
    """
    a, b = np.log(low), np.log(high)
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_c, at_d = value(np.exp(c)), value(np.exp(d))
    for _ in range(SECTIONS):
        left = at_c < at_d
        a, b = np.where(left, a, c), np.where(left, d, b)
        inner, at_inner = np.where(left, c, d), np.where(left, at_c, at_d)
        new = np.where(left, b - GOLDEN * (b - a), a + GOLDEN * (b - a))
        at_new = value(np.exp(new))
        c, d = np.where(left, new, inner), np.where(left, inner, new)
        at_c, at_d = np.where(left, at_new, at_inner), np.where(left, at_inner, at_new)
    return np.exp(0.5 * (a + b))
