"""The closed-form allocation against a numerical minimum and Hoffmann's own table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, allocation_exponents, loss_at, optimal_allocation
from tests.laws.examples import published

LAWS = st.builds(
    ChinchillaParams,
    E=st.floats(0, 3),
    A=st.floats(1, 1e4),
    B=st.floats(1, 1e4),
    alpha=st.floats(0.1, 1.0),
    beta=st.floats(0.1, 1.0),
)


def test_a_loss_worked_by_hand():
    assert loss_at(ChinchillaParams(1.5, 8.0, 27.0, 0.5, 1 / 3), 16.0, 27.0) == pytest.approx(1.5 + 8 / 4 + 27 / 3)


@given(LAWS, st.floats(10, 26), st.floats(0.5, 12))
def test_the_optimum_is_the_least_loss_along_the_budget(params, log10_budget, k):
    C = 10**log10_budget
    best = optimal_allocation(params, C, k)
    assert k * best.N * best.D == pytest.approx(C)
    lowest = minimize_scalar(
        lambda shift: float(loss_at(params, best.N * np.exp(shift), best.D * np.exp(-shift))), bounds=(-3, 3)
    )
    assert float(best.loss) <= lowest.fun * (1 + 1e-12)


@given(LAWS, st.floats(10, 24))
def test_the_exponents_are_the_slopes_of_the_optimum(params, log10_budget):
    near, far = optimal_allocation(params, 10**log10_budget), optimal_allocation(params, 10 ** (log10_budget + 2))
    a, b = allocation_exponents(params)
    assert np.log10(far.N / near.N) / 2 == pytest.approx(float(a), rel=1e-9)
    assert np.log10(far.D / near.D) / 2 == pytest.approx(float(b), rel=1e-9)


def test_hoffmanns_coefficients_give_hoffmanns_exponents():
    """Table 2 prints a = .46 [.454, .455], b = .54 [.542, .543] for approach 3."""
    raw = published("chinchilla_paper", "approach3", "unrounded_from_latex")
    params = ChinchillaParams(np.exp(raw["logE"]), np.exp(raw["logA"]), np.exp(raw["logB"]), raw["alpha"], raw["beta"])
    a, b = allocation_exponents(params)
    table = published("chinchilla_paper", "table2", "approach3")
    assert abs(a - table["a"][0]) < 0.005 and abs(b - table["b"][0]) < 0.005


def test_arrays_of_laws_and_of_budgets_broadcast():
    laws = ChinchillaParams(*(np.array([x, 2 * x])[:, None] for x in (1.0, 400.0, 500.0, 0.3, 0.3)))
    best = optimal_allocation(laws, np.array([1e18, 1e20, 1e22]))
    assert best.N.shape == best.loss.shape == (2, 3)
    one = optimal_allocation(ChinchillaParams(1.0, 400.0, 500.0, 0.3, 0.3), 1e20)
    assert best.N[0, 1] == one.N and best.loss[0, 1] == one.loss


def test_a_law_without_a_term_has_no_optimum():
    assert not np.isfinite(optimal_allocation(ChinchillaParams(1.0, 0.0, 500.0, 0.3, 0.3), 1e20).D)
