"""Profiles against the textbook, against known truths, and on a parameter that published data don't determine."""

import csv

import numpy as np
import pytest
from scipy.stats import t as student

from scalelab.laws.fits.fitting import fit
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at
from scalelab.laws.law.law import Coefficient, law_of
from scalelab.laws.law.names import LAWS
from scalelab.laws.law.objective import Objective, huber_log, load_objective
from scalelab.laws.solve.optimum import minimise_objective
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.trust import profile
from tests.laws.examples import QUICKSTART_LIKE, published, study
from tests.tables import table_path

CHINCHILLA = LAWS["chinchilla"]


def line(x, *, E: Coefficient, A: Coefficient):
    """L = E + A x"""
    return E + A * x


LINE = law_of(line)


def identify(law, columns, target, by, level=0.9):
    posed = pose_problem(law, columns, np.asarray(target), by)
    best = minimise_objective(posed)
    return best, profile.profile_params(posed, best, level)


@pytest.mark.parametrize(("points", "level"), [(6, 0.9), (12, 0.5), (12, 0.99)])
def test_a_straight_line_has_the_textbooks_t_interval(points, level):
    x = np.linspace(1.0, 4.0, points)
    y = 10.0 + 5.0 * x + np.random.default_rng(points).normal(0.0, 0.3, points)
    _, result = identify(LINE, {"x": x}, y, load_objective("mse"), level)
    design = np.column_stack([np.ones(points), x])
    coefs, (rss,), *_ = np.linalg.lstsq(design, y)
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * rss / (points - 2))
    half = student.ppf((1 + level) / 2, points - 2) * errors
    for name, value, width in zip(("E", "A"), coefs, half, strict=True):
        np.testing.assert_allclose(result[name].interval, [value - width, value + width], rtol=2e-4)
        assert result[name].verdict == "identified"


@pytest.mark.slow
@pytest.mark.parametrize("by", [load_objective("mse_log"), huber_log(1e-3)], ids=["least squares", "huber"])
def test_intervals_cover_the_truth_as_often_as_they_say(by):
    """30 studies of five parameters: 90 % intervals; of Gaussian noise, whatever the objective believes."""
    hits = []
    for seed in range(30):
        N, D, loss = study(QUICKSTART_LIKE, 0.003, seed, sizes=7)
        _, result = identify(CHINCHILLA, {"N": N, "D": D}, loss, by)
        for name, truth in QUICKSTART_LIKE._asdict().items():
            low, high = result[name].interval
            hits.append((low or 0.0) <= truth <= (high or np.inf))
    assert 0.8 <= np.mean(hits) <= 0.97  # at its word, Huber's likelihood covers 74 %


def test_a_wide_clean_grid_identifies_everything():
    N, D, loss = study(QUICKSTART_LIKE, 1e-5, sizes=9, budgets=np.geomspace(1e10, 1e14, 6))
    _, result = identify(CHINCHILLA, {"N": N, "D": D}, loss, huber_log())
    for name, truth in QUICKSTART_LIKE._asdict().items():
        low, high = result[name].interval
        assert result[name].verdict == "identified" and 0.99 < low / truth < high / truth < 1.01


def test_an_entropy_at_zero_is_open_below():
    N, D, _ = study(QUICKSTART_LIKE)
    loss = loss_at(QUICKSTART_LIKE._replace(E=-0.2), N, D) * np.exp(0.02 * np.sin(9 * N))
    best, result = identify(CHINCHILLA, {"N": N, "D": D}, loss, huber_log())
    assert best.params["E"] == 0.0
    low, high = result["E"].interval
    assert result["E"].verdict == "one-sided" and low is None and 0 < high < 2


def test_data_that_never_vary_leave_their_term_open():
    """One D for all N (which `fit` refuses): A and alpha stand, B and beta don't."""
    N = np.geomspace(1e3, 1e6, 16)
    law = ChinchillaParams(E=1.0, A=100.0, B=350.0, alpha=0.4, beta=0.47)
    loss = loss_at(law, N, 1e7) * np.exp(0.001 * np.random.default_rng(0).standard_normal(16))
    _, result = identify(CHINCHILLA, {"N": N, "D": np.full(16, 1e7)}, loss, huber_log())
    verdicts = {name: result[name].verdict for name in result}
    assert verdicts["A"] == verdicts["alpha"] == "identified"
    assert verdicts["B"] == verdicts["beta"] == "not identified"
    assert verdicts["E"] != "identified"


@pytest.mark.parametrize(
    ("how", "value", "interval", "verdict"),
    [
        ("direct", 0.3, (0.2, 0.5), "identified"),
        ("log", 15.0, (2.0, 190.0), "identified"),
        ("log", 15.0, (1.0, 190.0), "not identified"),  # both ends known, two orders of magnitude apart
        ("direct", 0.3, (0.05, 0.6), "not identified"),
        ("direct", -0.3, (-0.5, -0.2), "identified"),
        ("direct", 0.3, (-0.1, 0.6), "not identified"),  # straddles zero
        ("direct", 0.3, (0.0, 0.6), "not identified"),
        ("direct", 1.0, (-9999.0, 9999.0), "not identified"),
        ("linear", 300.0, (100.0, 900.0), "identified"),
        ("linear", 300.0, (20.0, 900.0), "not identified"),
        ("linear", 0.0, (None, 0.4), "one-sided"),
        ("linear", 0.5, (None, 0.9), "one-sided"),
        ("log", 15.0, (6.0, None), "one-sided"),
        ("log", 95.0, (7.0, None), "not identified"),  # the end is far from the best value: it says little
        ("log", 95.0, (None, None), "not identified"),
    ],
)
def test_verdicts(how, value, interval, verdict):
    assert profile.judge_interval(how, value, interval) == verdict


def muennighoff():
    with table_path("datablations/runs_182_fit_set.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = {"N": "params", "D": "tokens_total", "U": "tokens_unique", "loss": "val_loss"}
    return {name: np.array([float(row[column]) for row in rows]) for name, column in names.items()}


@pytest.mark.full
def test_muennighoffs_repetition_constant_is_not_identified():
    """Their 182 runs, only R_D* and R_N* free in their law: the published optimum is local, R_D* has no upper end."""
    golden, runs = published("muennighoff"), muennighoff()
    fixed = {name.upper() if name in "eab" else name: value for name, value in golden["fixed"].items()}
    fixed |= {name: float(np.exp(fixed[name])) for name in "EAB"}
    fitted = fit(runs, "data_constrained", fixed=fixed, bootstrap=0)
    there = fitted.problem.from_params({name: golden["published"][name] for name in fitted.params})
    value = fitted.problem.value(there[None], np.ones((1, 182)))[0]
    assert value == pytest.approx(golden["published"]["objective"], rel=3e-7)  # six constants of 7 digits: 5e-8 each
    lower = golden["lower_optimum_found_here"]
    assert fitted.best.value == pytest.approx(lower["objective"], rel=1e-6)
    assert fitted.params == pytest.approx({"R_D_star": lower["R_D_star"], "R_N_star": lower["R_N_star"]}, rel=1e-3)
    assert fitted.identifiability["R_D_star"].verdict == "not identified"
    result = profile.profile_params(fitted.problem, fitted.best)["R_D_star"]  # if their law is right, which it isn't
    assert result.verdict == "not identified" and result.interval[1] is None and 4 < result.interval[0] < 16
    assert fitted.form.fails and fitted.misfit.rms > 0.05
    assert fitted.to_json()["fixed"]["alpha"] == golden["fixed"]["alpha"]
    assert "R_D_star is not identified" in fitted.warnings()


def test_held_parameters_leave_the_others_as_they_are():
    held = law_lib.hold_params(CHINCHILLA, E=1.1, beta=0.47)
    N, D, loss = study(QUICKSTART_LIKE)
    assert list(held.params) == ["A", "B", "alpha"] and dict(held.held) == {"E": 1.1, "beta": 0.47}
    assert law_lib.hold_params(CHINCHILLA, beta=0.47, E=1.1) is held  # compiled once
    np.testing.assert_allclose(held({"N": N, "D": D}, {"A": 250.0, "B": 350.0, "alpha": 0.6}), loss)
    best = minimise_objective(pose_problem(held, {"N": N, "D": D}, loss, huber_log()))
    assert best.params == pytest.approx({"A": 250.0, "B": 350.0, "alpha": 0.6}, rel=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"aplha": 0.3}, "no free parameter 'aplha'; did you mean 'alpha'"),
        ({"alpha": -1.0}, "alpha = -1 can't be held"),
        (QUICKSTART_LIKE._asdict(), "every parameter is held"),
    ],
)
def test_what_cannot_be_held_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        law_lib.hold_params(CHINCHILLA, **values)


@pytest.mark.parametrize("delta", [1e-3, np.inf])
def test_the_likelihood_is_that_of_a_density(delta):
    """exp(-penalty / s) over its normaliser integrates to one."""
    by = Objective("x", delta, overestimate=3.0)
    r = np.linspace(-0.2, 0.2, 400_001)
    for s in (1e-6, 1e-5):
        area = np.trapezoid(np.exp(-by.penalty(r) / s), r)
        assert by.log_normaliser(s) == pytest.approx(np.log(area), abs=1e-4)
    assert load_objective("huber_log", 1e308).log_normaliser() == pytest.approx(
        np.log(np.sqrt(2 * np.pi))
    )  # all inside: Gauss's


@pytest.mark.full
def test_the_run_that_tightens_most_is_found_by_trying_them_all():
    """Each run of a coarse grid is added, exact, and the profile taken again: the proposal is the best or near it."""
    N, D, loss = study(QUICKSTART_LIKE, 0.002, sizes=7)
    by = load_objective("mse_log")
    best, result = identify(CHINCHILLA, {"N": N, "D": D}, loss, by)
    run = result["alpha"].tighten
    assert run["C"] == pytest.approx(6 * run["N"] * run["D"]) and run["C"] <= 6 * (N * D).max() * (1 + 1e-6)
    law = ChinchillaParams(**best.params)

    def width(n, d):
        extra = {"N": np.append(N, n), "D": np.append(D, d)}
        posed = pose_problem(CHINCHILLA, extra, np.append(loss, loss_at(law, n, d)), by)
        low, high = profile.profile_params(posed, minimise_objective(posed))["alpha"].interval
        return high - low

    proposed = width(run["N"], run["D"])
    others = [
        width(n, d)
        for n in np.geomspace(N.min(), 4 * N.max(), 4)
        for d in np.geomspace(D.min(), 4 * D.max(), 4)
        if n * d <= (N * D).max()
    ]
    low, high = result["alpha"].interval
    assert proposed <= 1.05 * min(others) and proposed < 0.9 * (high - low)


def test_the_tightening_run_is_costed_as_the_users_runs_are():
    N, D, loss = study(QUICKSTART_LIKE, 0.002)
    fitted = fit({"N": N, "D": D, "C": 12 * N * D, "loss": loss}, bootstrap=0)
    for name, each in fitted.to_json()["identifiability"].items():
        run = each["tighten"]
        assert run["C"] == pytest.approx(12 * run["N"] * run["D"]), name
