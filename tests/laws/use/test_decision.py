"""Decisions against closed forms and brute force: the best size, the loss there, the compute that an error wastes."""

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from scalelab.errors import BadInput
from scalelab.laws.fits.fitting import fit
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at
from scalelab.laws.law.names import LAWS
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.use import decision
from tests.laws.examples import QUICKSTART_LIKE, study

CHINCHILLA = LAWS["chinchilla"]
PARAMETERS = [
    ChinchillaParams(1.69, 406.4, 410.7, 0.34, 0.28),
    ChinchillaParams(1.8, 480.0, 2100.0, 0.35, 0.37),
    ChinchillaParams(1.0, 30.0, 5e4, 0.2, 0.6),
]
STACKED = {name: np.array([getattr(law, name) for law in PARAMETERS]) for name in ChinchillaParams._fields}


def generic(params):
    """Chinchilla's law as the engine sees any law: a parameter is held, so that no closed form applies."""
    names = ("A", "B", "alpha", "beta")
    return law_lib.hold_params(CHINCHILLA, E=params.E), {name: np.array([getattr(params, name)]) for name in names}


@pytest.mark.parametrize("law", PARAMETERS)
@pytest.mark.parametrize("C", [1e19, 1e23])
def test_the_size_that_is_searched_is_that_of_the_closed_form(law, C):
    result = decision.optimal_size(*generic(law), C, 6.0, {})
    assert result[0] == pytest.approx(float(chinchilla_optimum.optimal_allocation(law, C).N), rel=1e-3)


@pytest.mark.parametrize(("dead", "size"), [("A", 0.0), ("B", np.inf)])
def test_a_law_without_one_of_its_terms_has_no_best_size(dead, size):
    """A grid searched over ends at its edge, and says so; so does the closed form."""
    law = PARAMETERS[0]._replace(**{dead: 0.0})
    assert decision.optimal_size(*generic(law), 1e22, 6.0, {})[0] == size
    assert float(chinchilla_optimum.optimal_allocation(law, 1e22).N) == size


def test_a_law_with_exponent_gamma_has_the_optimum_of_a_numerical_search():
    law = LAWS["chinchilla_gamma"]
    params = {"E": 1.6, "A": 900.0, "B": 1200.0, "alpha": 0.42, "beta": 0.33, "gamma": 0.7}
    by_search = minimize_scalar(
        lambda n: float(law({"N": np.exp(n), "D": 1e22 / (6 * np.exp(n))}, params)), bracket=(18, 22, 26), tol=1e-12
    )
    arrays = {name: np.array([value]) for name, value in params.items()}
    assert decision.optimal_size(law, arrays, 1e22, 6.0, {})[0] == pytest.approx(np.exp(by_search.x), rel=1e-3)


@pytest.mark.parametrize("factor", [0.25, 0.8, 1.0, 3.0])
def test_waste_is_the_budget_that_the_best_split_would_have_saved(factor):
    C = 1e22
    best = chinchilla_optimum.optimal_allocation(ChinchillaParams(**STACKED), C)
    chosen = float(best.N[0]) * factor
    wasted = decision.wasted_share(CHINCHILLA, STACKED, chosen, best.N, C, 6.0)
    for law, share in zip(PARAMETERS, wasted, strict=True):
        reached = loss_at(law, chosen, C / (6 * chosen))
        saved = brentq(
            lambda s, law=law, L=reached: chinchilla_optimum.optimal_allocation(law, C * np.exp(s)).loss - L, -12, 1e-9
        )
        assert share == pytest.approx(1 - np.exp(saved), abs=1e-8)
        searched, params = generic(law)
        size = decision.optimal_size(searched, params, C, 6.0, {})
        assert decision.wasted_share(searched, params, chosen, size, C, 6.0)[0] == pytest.approx(share, abs=2e-4)
    if factor == 1.0:
        assert wasted[0] == pytest.approx(0, abs=1e-8) and (wasted[1:] > 0.001).all()


def test_a_decision_covers_what_it_says():
    """The true best size and its loss lie inside; more noise widens every interval and the waste."""
    truth = chinchilla_optimum.optimal_allocation(QUICKSTART_LIKE, 1e13)
    decisions = []
    for noise in (0.001, 0.006):
        N, D, loss = study(QUICKSTART_LIKE, noise, 5, sizes=7)
        fitted = fit({"N": N, "D": D, "loss": loss}, bootstrap=200, identify=False, target_flops=[1e13])
        decisions.append(fitted.decisions[0])
    for result in decisions:
        assert result.N.low < truth.N < result.N.high and result.D.low < truth.D < result.D.high
        assert result.loss.low < truth.loss < result.loss.high
        assert result.tokens_per_param.value == pytest.approx(result.D.value / result.N.value)
        assert 6 * result.N.value * result.D.value == pytest.approx(1e13)
        assert 0 <= result.waste.low <= result.waste.value <= result.waste.high < 0.2
    calm, noisy = decisions
    assert np.log(noisy.N.high / noisy.N.low) > 4 * np.log(calm.N.high / calm.N.low)
    assert noisy.waste.value > 4 * calm.waste.value


def test_resamples_without_an_optimum_widen_the_interval_and_stay_out_of_the_waste():
    N, D, loss = study(QUICKSTART_LIKE, 0.005, 1)
    fitted = fit({"N": N, "D": D, "loss": loss}, bootstrap=50, identify=False)
    boot = fitted.bootstrap
    boot.params["B"][:10] = 0.0  # tokens do nothing: the best size takes all compute
    result = fitted.decide(1e13)
    assert result.N.high == np.inf and result.D.low == 0.0
    assert np.isfinite(result.waste.value) and 0 <= result.waste.high < 1


@pytest.mark.parametrize("C", [-1.0, 0.0, np.inf, np.nan])
def test_a_budget_must_be_a_number_of_flops(C):
    N, D, loss = study(QUICKSTART_LIKE, 0.005, 1)
    with pytest.raises(BadInput, match="a budget is a positive number"):
        fit({"N": N, "D": D, "loss": loss}, bootstrap=5, identify=False).decide(C)


def test_laws_that_split_no_budget_say_so():
    C = np.geomspace(1e18, 1e22, 9)
    best = chinchilla_optimum.optimal_allocation(PARAMETERS[0], C)
    fitted = fit({"C": C, "loss": best.loss}, "saturating", bootstrap=5, identify=False)
    with pytest.raises(BadInput, match="has no N and D"):
        decision.decide_allocation(fitted.problem, fitted.best, fitted.bootstrap, 1e24)


def test_more_data_that_harm_leave_no_best_size():
    N, D, _ = study(QUICKSTART_LIKE)
    fitted = fit({"N": N, "D": D, "loss": (1 + 100 / N**0.5) * D**0.01}, bootstrap=5, identify=False)
    with pytest.raises(FitError, match="no compute-optimal size at 1e\\+13"):
        fitted.decide(1e13)
