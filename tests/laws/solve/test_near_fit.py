"""Refits of large tables against the solver that knows nothing of the fit they start from."""

import numpy as np
import pytest

from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import huber_log
from scalelab.laws.solve import near_fit, newton
from scalelab.laws.solve.optimum import minimise_objective
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.trust import dependence, uncertainty
from tests.laws.truths import TRUTHS


def large_study(rows=2000):
    random = np.random.default_rng(0)
    N, D = np.exp(random.uniform(np.log([5e7, 1e9]), np.log([1.6e10, 3e11]), (rows, 2))).T
    law = load_law("chinchilla")
    loss = law({"N": N, "D": D}, TRUTHS["chinchilla"]) * np.exp(0.005 * random.standard_normal(rows))
    problem = pose_problem(law, {"N": N, "D": D}, loss, huber_log())
    return problem, minimise_objective(problem)


def test_newtons_steps_end_where_the_safe_solver_does():
    problem, best = large_study()
    weights = np.random.default_rng(1).multinomial(2000, np.full(2000, 1 / 2000), size=12).astype(float)
    moved = 0.005 * np.random.default_rng(2).standard_normal((12, 2000))
    for shift in (None, moved):
        near = near_fit.refit_near(problem, weights, best.x, shift)
        safe = newton.descend(problem, np.tile(best.x, (12, 1)), weights, moved=shift)
        assert near.converged.all() and safe.converged.all()
        np.testing.assert_allclose(near.objective, safe.objective, rtol=1e-9)
        spread = safe.x.std(axis=0)
        assert (np.abs(near.x - safe.x) < 1e-3 * spread).all()


@pytest.mark.full
def test_a_large_tables_resamples_are_those_of_the_exact_way(monkeypatch):
    """Drawn in parts, refitted in parts: the intervals of the way that holds all of them at once."""
    problem, best = large_study()
    labels = np.arange(2000) % 40
    shared = dependence.estimate_dependence(problem, best, labels, "run")
    exact = [uncertainty.bootstrap_fit(problem, best, 60, dependence=each) for each in (None, shared)]
    monkeypatch.setattr(near_fit, "MANY_ROWS", 100)
    monkeypatch.setattr(uncertainty, "HELD_AT_ONCE", 2000 * 25)
    monkeypatch.setattr(dependence, "HELD_AT_ONCE", 2000 * 25)
    shown = []
    parts = uncertainty.bootstrap_fit(problem, best, 60, progress=lambda *each: shown.append(each))
    for theirs, ours in zip(
        exact, [parts, uncertainty.bootstrap_fit(problem, best, 60, dependence=shared)], strict=True
    ):
        assert ours.used == theirs.used == 60
        for name, values in theirs.params.items():
            np.testing.assert_allclose(ours.params[name], values, atol=1e-3 * values.std())
        np.testing.assert_allclose(np.sort(ours.noise), np.sort(theirs.noise), atol=1e-6)
    assert shown[:3] == [("resamples", 25, 60), ("resamples", 50, 60), ("resamples", 60, 60)]
    assert shown[3:] == [("left-out fits", done, 200) for done in range(25, 201, 25)]
