"""Penalties against their definitions and their own derivatives."""

import numpy as np
import pytest
from scipy.special import huber

from scalelab.errors import BadInput
from scalelab.laws.law.objective import OBJECTIVES, load_objective

R = np.array([-0.5, -1.5e-3, -4e-4, 3e-4, 1.2e-3, 0.7])


def test_hubers_function_is_scipys():
    np.testing.assert_allclose(load_objective("huber_log").penalty(R), huber(1e-3, R), rtol=1e-12)
    np.testing.assert_allclose(load_objective("mse_log").penalty(R), R**2 / 2, rtol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_slope_and_bend_are_derivatives(name):
    kind = load_objective(name)
    step = 1e-7
    slope = (kind.penalty(R + step) - kind.penalty(R - step)) / (2 * step)
    np.testing.assert_allclose(kind.slope(R), slope, rtol=1e-5)
    bend = (kind.slope(R + step) - kind.slope(R - step)) / (2 * step)
    np.testing.assert_allclose(kind.bend(R) * np.ones(6), bend, atol=1e-6)
    np.testing.assert_allclose(kind.weight(R) * R, kind.slope(R), rtol=1e-12)


def test_losses_above_the_law_cost_less_when_it_is_an_envelope():
    plain, envelope = load_objective("huber_log").penalty(R), load_objective("asymmetric").penalty(R)
    np.testing.assert_allclose(envelope / plain, np.where(R > 0, 10.0, 1.0))


def test_raw_and_log_targets():
    losses = np.array([2.0, 3.0])
    np.testing.assert_array_equal(load_objective("mse").target(losses), losses)
    np.testing.assert_array_equal(load_objective("mse_log").target(losses), np.log(losses))


@pytest.mark.parametrize(
    ("name", "delta", "message"),
    [
        ("hubber_log", None, "did you mean 'huber_log'"),
        ("huber_log", 0.0, "delta = 0"),
        ("huber_log", -1.0, "must be positive"),
        ("mse_log", 1e-3, "has no threshold"),
        ("huber:0", None, "a positive number"),
        ("huber:ten", None, "a positive number; huber_log:10 fits a lower envelope"),
        ("mle:10", None, "'mle:10': has no side"),
    ],
)
def test_refusals(name, delta, message):
    with pytest.raises(BadInput, match=message):
        load_objective(name, delta)
