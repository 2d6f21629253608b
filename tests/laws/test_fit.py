"""The door of the room: a table in, a fitted law with its evidence out; and one clear line for every mistake."""

import json

import numpy as np
import pytest

from scalelab import laws
from scalelab.errors import BadInput
from scalelab.laws.fits.fitting import fit_chinchilla
from scalelab.laws.read.points import law_columns
from tests.laws.examples import QUICKSTART_LIKE, study

GOOD = dict(zip(("N", "D", "loss"), study(QUICKSTART_LIKE), strict=True))
NOISY = dict(zip(("N", "D", "loss"), study(QUICKSTART_LIKE, 0.005), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": [float("nan"), *GOOD["loss"][1:]]}, r"loss\[0\] = nan"),
        ({"N": [*GOOD["N"][:-1], float("inf")]}, r"N\[19\] = inf"),
        ({"D": [*GOOD["D"][:3], -1.0, *GOOD["D"][4:]]}, r"D\[3\] = -1"),
        ({"N": [*GOOD["N"][:3], 0.0, *GOOD["N"][4:]]}, r"N\[3\] = 0"),
        ({"loss": GOOD["loss"][:4]}, "one length"),
        ({"D": GOOD["D"][:4]}, "one length"),
        ({key: value[:4] for key, value in GOOD.items()}, "5"),
        ({"N": np.where(GOOD["N"] > 5e4, 1e5, 1e4)}, "N has only two values"),
        ({"D": np.full(20, 1e6)}, "D has one value"),
    ],
)
def test_bad_input_is_refused_in_one_line(change, message):
    for call in (lambda table: laws.fit(table, bootstrap=0), lambda table: fit_chinchilla(**table)):
        with pytest.raises(BadInput, match=message) as refusal:
            call(GOOD | change)
        assert "\n" not in str(refusal.value)


def test_a_missing_column_is_named_with_the_law():
    with pytest.raises(BadInput, match="needs N, D, U, loss; the table has no U"):
        laws.fit(GOOD, law="data_constrained")


def test_compute_and_ratio_follow_from_size_and_tokens():
    columns, target = law_columns(GOOD | {"note": ["text"] * 20}, laws.law_of(law_of_both))
    np.testing.assert_allclose(columns["C"], 6 * GOOD["N"] * GOOD["D"])
    np.testing.assert_allclose(columns["M"], GOOD["D"] / GOOD["N"])
    np.testing.assert_array_equal(target, GOOD["loss"])


def law_of_both(C, M, *, E: laws.Coefficient, eta: laws.Exponent):
    return E + M * C**-eta


def test_the_fit_is_that_of_its_parts():
    fitted = laws.fit(NOISY, bootstrap=50, target_flops=[4e12], identify=False)
    params, best = fit_chinchilla(*NOISY.values())
    assert fitted.params == params._asdict() and fitted.best.value == best.value
    assert fitted.k == 6.0 and fitted.bootstrap.used == 50
    assert fitted.loss(1e5, 1e7) == pytest.approx(params.E + params.A / 1e5**params.alpha + params.B / 1e7**params.beta)
    assert fitted.decide(4e12) == fitted.decisions[0]
    assert laws.fit(NOISY | {"C": 7 * NOISY["N"] * NOISY["D"]}, bootstrap=0, identify=False).k == pytest.approx(7)


@pytest.mark.full
def test_another_law_and_another_objective():
    C = np.geomspace(1e17, 1e22, 12)
    loss = 1.5 + 1500 / C**0.155
    for objective in ("huber_log", "mse_log", "mse"):
        fitted = laws.fit({"C": C, "loss": loss}, law="saturating", objective=objective, bootstrap=0, identify=False)
        assert fitted.params == pytest.approx({"E": 1.5, "A": 1500.0, "alpha": 0.155}, rel=1e-6)


def test_json_holds_plain_numbers_under_every_promised_key():
    block = json.loads(json.dumps(laws.fit(NOISY, bootstrap=30, target_flops=[4e12], holdout=3).to_json()))
    promised = "law n_rows objective params certificate intervals identifiability allocation design holdout seconds"
    assert set(promised.split()) <= set(block)
    assert set(block["params"]) == {"E", "A", "B", "alpha", "beta"} == set(block["identifiability"])
    assert block["exponents"]["a"] + block["exponents"]["b"] == pytest.approx(1)
    assert block["certificate"]["converged"] is True and block["certificate"]["at_bounds"] == []
    assert {"starts", "agree", "next_basin_gap", "grad_norm", "condition"} <= set(block["certificate"])
    for name, value in block["params"].items():
        low, high = block["intervals"][name]
        assert low <= value <= high


def test_no_interval_without_resamples():
    with pytest.raises(BadInput, match="bootstrap > 0"):
        laws.fit(NOISY, bootstrap=0, identify=False).predict(1e5, 1e7)
