"""The test of a law's form: a right law passes as often as it should, a wrong one fails, misfit covers new runs."""

import numpy as np
import pytest

from scalelab.laws.fits.fitting import fit
from scalelab.laws.law.law import Coefficient, law_of
from scalelab.laws.law.names import LAWS
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.optimum import minimise_objective
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.trust import misfit
from scalelab.laws.trust.dependence import estimate_dependence
from scalelab.laws.trust.form import judge_form
from scalelab.laws.trust.uncertainty import bootstrap_fit, predict_run
from tests.laws.examples import QUICKSTART_LIKE, hoffmann_points, posed, study

BUDGETS = np.geomspace(1e11, 1e13, 6)
GAMMA = {"E": 0.9, "A": 8.0, "B": 90.0, "alpha": 0.25, "beta": 0.36, "gamma": 2.0}


def right(seed):
    return posed(*study(QUICKSTART_LIKE, 0.003, seed, sizes=7, budgets=BUDGETS))


def wrong(seed=0, noise=0.002):
    N, D, _ = study(QUICKSTART_LIKE, sizes=7, budgets=BUDGETS)
    errors = noise * np.random.default_rng(seed).standard_normal(len(N))
    return N, D, LAWS["chinchilla_gamma"]({"N": N, "D": D}, GAMMA) * np.exp(errors)


def line(N, *, E: Coefficient, A: Coefficient):
    """L = E + A N"""
    return E + A * N


def test_the_share_of_a_straight_line_that_is_a_parabola():
    """By hand: residuals of a line are regressed on the polynomials that the line leaves."""
    N = np.geomspace(1.0, 30.0, 24)
    target = 5 + 2 * N + 0.3 * np.log(N) ** 2 + np.random.default_rng(0).normal(0, 0.2, 24)
    problem = pose_problem(law_of(line), {"N": N}, target, Objective("mse", np.inf, log=False))
    best = minimise_objective(problem)
    tested = judge_form(problem, best)
    design = np.column_stack([np.ones(24), N])
    wide = np.column_stack([design, *(np.log(N) ** power for power in (1, 2, 3))])
    squares = [np.linalg.lstsq(columns, target)[1][0] for columns in (design, wide)]
    assert tested.share == pytest.approx(1 - squares[1] / squares[0], rel=1e-4)
    assert tested.by_chance[0] < 3 / 22 < tested.by_chance[1]  # three terms of 22 degrees of freedom


@pytest.mark.full
def test_the_right_law_passes_and_its_p_values_are_even():
    tests = [judge_form(problem, minimise_objective(problem)) for problem in map(right, range(60))]
    p_values = np.array([each.p_values["surface"] for each in tests])
    assert sum(each.fails for each in tests) <= 4  # 0.6 expected
    assert 0.35 < p_values.mean() < 0.65 and 0.2 < np.mean(p_values < 0.5) < 0.8


def test_errors_that_runs_share_are_not_a_wrong_form():
    """Twelve runs of eight checkpoints: residuals keep their sign for eight rows, and the law is right."""
    N = np.repeat(np.geomspace(1e5, 1e7, 12), 8)
    D = N * np.repeat(np.resize([20, 60, 10, 120], 12), 8) * np.tile(np.linspace(0.125, 1, 8), 12)
    random = np.random.default_rng(1)
    errors = np.repeat(0.005 * random.standard_normal(12), 8) + 0.0005 * random.standard_normal(96)
    problem = posed(N, D, LAWS["chinchilla"]({"N": N, "D": D}, QUICKSTART_LIKE._asdict()) * np.exp(errors))
    best = minimise_objective(problem)
    assert judge_form(problem, best).fails
    assert not judge_form(problem, best, estimate_dependence(problem, best, np.repeat(np.arange(12), 8))).fails


@pytest.mark.full
def test_a_wrong_law_fails_and_the_wider_one_is_named():
    problem = posed(*wrong())
    best = minimise_objective(problem)
    tested = judge_form(problem, best)
    assert tested.fails and tested.share > 2 * tested.by_chance[1]
    wider = misfit.find_wider_law(problem, best, None)
    assert (wider.name, wider.param) == ("chinchilla_gamma", "gamma") and wider.value > 1.1 and 0 < wider.lower_by < 1
    right_problem = right(0)
    assert misfit.find_wider_law(right_problem, minimise_objective(right_problem), None) is None


@pytest.mark.full
def test_intervals_hold_the_next_decade_only_with_the_misfit():
    """Five studies of a wrong law; the run is at ten times the largest budget."""
    far, inside = {"N": 1e6, "D": 1e14 / 6e6}, {"with": 0, "without": 0}
    truth = float(LAWS["chinchilla_gamma"](far, GAMMA))
    for seed in range(5):
        problem = posed(*wrong(seed))
        best = minimise_objective(problem)
        carried, _, _ = misfit.resample_fit(problem, best, 60, 0, None)
        for name, boot in {"with": carried, "without": bootstrap_fit(problem, best, 60)}.items():
            prediction = predict_run(problem, best, boot, far)
            inside[name] += prediction.low <= truth <= prediction.high
    assert inside["with"] >= 4 and inside["without"] <= 1


@pytest.mark.full
def test_a_fit_says_so_and_few_rows_are_not_judged():
    N, D, loss = hoffmann_points()
    block = fit({"N": N, "D": D, "loss": loss}, bootstrap=20).to_json()
    assert block["form"]["fails"] and block["misfit"]["rms"] > 0 and block["wider_law"]["name"] == "chinchilla_gamma"
    assert "the form of law 'chinchilla' fails its test" in " ".join(block["warnings"])
    few = right(0)
    rows = np.arange(0, 42, 4)
    small = posed(few.columns["N"][rows], few.columns["D"][rows], few.target[rows])
    assert judge_form(small, minimise_objective(small)) is None
