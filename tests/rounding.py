"""Bounds of rounding errors, for tolerances: they hold for any order of a sum, so on any machine.

Higham & Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis", Theorem 3.1: a computed sum of n products
differs from the exact one by more than d sqrt(n) u times the sum of their magnitudes with a probability of at most
2 n exp(-d^2 / 2), where u is half the spacing of numbers at 1. With d = 6 that is 3 in a million for n = 100.
"""

import math

FP32 = 2.0**-24
LARGEST = 6.0  # standard deviations, for the largest of many elements
RMS = 1.0  # for a root mean square over many elements


def sum_error(terms: int, size: float = 1.0, deviations: float = LARGEST, unit: float = FP32) -> float:
    """Bound of the difference of two sums of the same terms, whose magnitudes add up to `size`.

    Of sums that stand one after another, `terms` are those of all: independent errors add up as their squares do.
    """
    return 2 * deviations * math.sqrt(terms) * unit * float(size)
