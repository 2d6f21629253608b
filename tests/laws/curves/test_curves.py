"""Laws of curves: sums against double loops, a published law on its published curve, derivatives, known laws found."""

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws.curves.curve import even_steps, make_curve, schedule_columns, stack_columns, thin_curve
from scalelab.laws.curves.fit import fit_curves
from scalelab.laws.curves.problem import CurveProblem
from scalelab.laws.law import curve_forms as forms
from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import load_objective
from scalelab.laws.solve.optimum import minimise_objective
from tests.laws.curves_examples import ANNEALING, MULTI_POWER, SCHEDULES, measure_curve
from tests.quick import one_in

STEPS = 600


def naive_annealing(lr, first, step, decay):
    """Tissue et al. 2024: S2 as the double sum that the paper writes."""
    momenta = [sum((lr[k - 1] - lr[k]) * decay ** (i - k) for k in range(first, i + 1)) for i in range(first, step)]
    return sum(momenta)


def naive_drop(lr, step, C, beta, gamma):
    """Luo et al. 2025: LD / B as the sum over changes that the paper writes, warm-up included."""
    before = [0.0, *lr]
    terms = [(before[k] - lr[k]) * (1 - (C * lr[k] ** -gamma * lr[k:step].sum() + 1) ** -beta) for k in range(step)]
    return sum(terms)


@pytest.mark.parametrize("name", one_in(3, SCHEDULES))
def test_the_sums_are_those_of_double_loops(name):
    lr = SCHEDULES[name](300)
    curve = make_curve(name, lr)
    steps = np.array([60.0, 150.0, 290.0])
    for changes, tolerance in ((300, 1e-9), (24, 0.02)):  # every change alone; merged
        columns = schedule_columns(curve, steps, False, changes)
        flat = {"E": 0.0, "A": 0.0, "alpha": 0.5, "C": -1.0, "memory": 40.0}
        S2 = forms.CURVE_LAWS["annealing"](columns, flat)
        exact = [naive_annealing(lr, curve.warmup + 1, int(step), 1 - 1 / 40) for step in steps]
        np.testing.assert_allclose(S2, exact, rtol=tolerance, atol=1e-12)
        columns = schedule_columns(curve, steps, True, changes)
        flat = {"E": 0.0, "A": 0.0, "alpha": 0.5, "B": 1.0, "C": 2.0, "beta": 0.6, "gamma": 0.6}
        exact = [-naive_drop(lr, int(step), 2.0, 0.6, 0.6) for step in steps]
        np.testing.assert_allclose(forms.CURVE_LAWS["multi_power"](columns, flat), exact, rtol=tolerance)
    np.testing.assert_allclose(columns["S1"], [lr[: int(step)].sum() for step in steps], rtol=1e-12)


def test_published_parameters_reproduce_their_published_curve():
    """Luo et al. 2025, repository: the law of 400M parameters (README) on cosine_24000, which it was fitted to.

    Their largest relative error over all curves is .00995. Peak 3e-4 after 2,160 steps, a cosine to 3e-5 at 24,000.
    """
    t = np.arange(24_000)
    fall = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (t - 2160) / (24_000 - 2160)))
    curve = make_curve("cosine_24000", 3e-4 * np.where(t < 2160, (t + 1) / 2160, fall))
    steps = np.array([3056, 6000, 9968, 14_064, 18_032, 22_000, 23_920])
    measured = np.array([3.3347, 3.0744, 2.9335, 2.8462, 2.7853, 2.7485, 2.7396])
    published = {"E": 2.375, "A": 0.654, "alpha": 0.429, "B": 523.425, "C": 2.025, "beta": 0.594, "gamma": 0.635}
    predicted = forms.CURVE_LAWS["multi_power"](schedule_columns(curve, steps, True), published)
    assert np.abs(predicted / measured - 1).max() < 0.00995
    assert np.abs(predicted / measured - 1).mean() < 0.003  # without the warm-up's rises: .05


@pytest.mark.parametrize(("name", "truth"), [("annealing", ANNEALING), ("multi_power", MULTI_POWER)])
def test_derivatives_are_those_of_the_form(name, truth):
    """By hand against autodiff of the function in `forms`, at parameters off the optimum."""
    law = forms.CURVE_LAWS[name]
    columns = stack_columns(
        [
            schedule_columns(curve, even_steps(curve, 12), name in forms.WARMUP_LAWS)
            for curve in (make_curve(each, SCHEDULES[each](200)) for each in ("cosine", "two_step"))
        ]
    )
    target = law(columns, truth) * (1 + 0.01 * np.sin(np.arange(24)))
    objective = load_objective("mse_log")
    by_hand = CurveProblem(law, columns, target, objective)
    start = {key: 1.1 * value for key, value in truth.items()}
    x = by_hand.from_params(start)[None]
    assert {key: float(value[0]) for key, value in by_hand.to_params(x).items()} == pytest.approx(start)

    def residuals(moved):
        return np.log(law(columns, {key: v[:, None] for key, v in by_hand.to_params(moved).items()})) - np.log(target)

    steps = 1e-6 * np.eye(x.shape[1])
    slopes = (residuals(x + steps) - residuals(x - steps)) / 2e-6
    r, jac = by_hand.slopes(x)
    np.testing.assert_allclose(r, residuals(x), atol=1e-12)
    np.testing.assert_allclose(jac[0], slopes, rtol=1e-5, atol=1e-8)
    ones = np.ones((x.shape[1], 24))
    up, down = (by_hand.derivatives(x + sign * steps, ones)[0] for sign in (1, -1))
    gradient, _, hessian = by_hand.derivatives(x, ones[:1])
    np.testing.assert_allclose(gradient[0], jac[0] @ r[0], rtol=1e-9)
    np.testing.assert_allclose(hessian[0], (up - down) / 2e-6, rtol=1e-4, atol=1e-6 * np.abs(hessian).max())


@pytest.mark.full
@pytest.mark.parametrize(("name", "truth"), [("annealing", ANNEALING), ("multi_power", MULTI_POWER)])
def test_a_known_law_is_found_again(name, truth):
    law = forms.CURVE_LAWS[name]
    curves = [make_curve(each, SCHEDULES[each](STEPS)) for each in ("constant", "cosine", "two_step")]
    columns = stack_columns([schedule_columns(c, even_steps(c, 30), name in forms.WARMUP_LAWS) for c in curves])
    best = minimise_objective(CurveProblem(law, columns, law(columns, truth), load_objective("huber_log")))
    assert best.params == pytest.approx(truth, rel=1e-4)
    assert best.certificate.agree >= 3


def study(seed, runs=2, run_sd=0.003, row_sd=0.003, correlation=0.6, of=("constant", "cosine", "wsd")):
    random = np.random.default_rng(seed)
    errors = {"run_sd": run_sd, "row_sd": row_sd, "correlation": correlation}
    return [measure_curve(name, STEPS, random, **errors) for name in of for _ in range(runs)], random


@pytest.mark.full
def test_another_schedule_is_predicted_with_its_interval():
    curves, random = study(3)
    fitted = fit_curves(curves, bootstrap=60)
    assert fitted.best.params["alpha"] == pytest.approx(ANNEALING["alpha"], rel=0.2)
    assert fitted.errors.correlation == pytest.approx(0.6, abs=0.15) and 0.001 < fitted.errors.run_sd < 0.009
    assert len(fitted.left_out) == 3 and 1 <= fitted.widening < 3
    predicted = fitted.predict(measure_curve("two_step", STEPS, random, run_sd=0.003, row_sd=0.003, correlation=0.6))
    scores = predicted.scores
    assert scores["mae"] < scores["baseline_mae"] / 2 and scores["r2"] > 0.99
    assert scores["inside"] >= 0.8 * scores["rows"] and scores["final_inside"]
    alone = fitted.predict(make_curve("linear", SCHEDULES["linear"](STEPS)))
    assert alone.measured is None and alone.scores == {} and alone.steps[-1] == STEPS
    assert alone.low[-1] < alone.loss[-1] < alone.high[-1]


@pytest.mark.full
def test_errors_by_run_make_intervals_wide_that_rows_would_make_narrow():
    """Rows of one run that err together are few: intervals of alpha are wider than with independent errors."""
    together, _ = study(5, run_sd=0.006, row_sd=0.002, correlation=0.8)
    alone, _ = study(5, run_sd=0.0, row_sd=0.002, correlation=0.0)
    wide, narrow = (fit_curves(curves, bootstrap=40) for curves in (together, alone))
    widths = [fit.intervals()["A"][1] - fit.intervals()["A"][0] for fit in (wide, narrow)]
    assert widths[0] > 2 * widths[1]


def test_too_few_schedules_are_said_and_not_guessed():
    one, _ = study(1, runs=1, of=("cosine",))
    fitted = fit_curves(one, bootstrap=20)
    assert fitted.widening is None and fitted.left_out == () and fitted.errors.runs == 1 and fitted.errors.run_sd == 0


@pytest.mark.slow
def test_intervals_of_another_schedule_hold_it_as_often_as_they_say():
    """60 studies of three schedules with two seeds each: intervals of the final loss of a fourth, and of its rows."""
    finals, rows = [], []
    for seed in range(60):
        curves, random = study(100 + seed)
        measured = measure_curve("two_step", STEPS, random, run_sd=0.003, row_sd=0.003, correlation=0.6)
        scores = fit_curves(curves, bootstrap=60).predict(measured).scores
        finals.append(scores["final_inside"])
        rows.append(scores["inside"] / scores["rows"])
    assert 0.85 <= np.mean(finals) <= 1.0 and 0.85 <= np.mean(rows) <= 1.0


def test_rows_in_the_warm_up_are_not_fitted_and_many_are_averaged():
    lr = SCHEDULES["constant"](STEPS)
    steps = np.arange(1, STEPS + 1)
    curve = make_curve("a", lr, steps, 5.0 - steps / 1000)
    thin = thin_curve(curve)
    assert thin.steps[0] > curve.warmup == 29 and len(thin.steps) <= 50 and thin.counts.sum() == STEPS - 29
    np.testing.assert_allclose(thin.loss, 5.0 - thin.steps / 1000)  # a straight line stays one


@pytest.mark.parametrize(
    ("curves", "line"),
    [
        ([make_curve("a", np.ones(50), range(1, 5), [3.0] * 4)], "a curve needs 8"),
        ([make_curve("a", np.ones(50), range(1, 50), [3.0] * 49)], "LR decays"),
    ],
)
def test_curves_that_cannot_tell_are_refused(curves, line):
    with pytest.raises(BadInput, match=line):
        fit_curves(curves)


def test_what_is_not_a_curve_is_refused():
    for lr, steps, loss, line in (
        ([0.0, 0.0], (), (), "LR of each step"),
        ([1.0, -1.0], (), (), "LR of each step"),
        ([1.0, 1.0], [2, 1], [3.0, 3.0], "steps must rise"),
        ([1.0, 1.0], [1, 3], [3.0, 3.0], "stands at step 3"),
        ([1.0, 1.0], [1, 2], [3.0, np.nan], "diverged"),
    ):
        with pytest.raises(BadInput, match=line):
            make_curve("a", lr, steps, loss)
    with pytest.raises(BadInput, match="did you mean 'annealing'"):
        fit_curves([], "anealing")
    with pytest.raises(BadInput, match="within a run"):
        load_law("annealing")
