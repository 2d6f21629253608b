"""Rows that share an error: the variances against closed forms and simulated tables, and what intervals follow."""

import numpy as np
import pytest
from scipy.stats import f as f_distribution

from scalelab.errors import BadInput
from scalelab.laws.law.law import Coefficient, law_of
from scalelab.laws.law.objective import Objective, huber_log
from scalelab.laws.solve.optimum import minimise_objective
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.trust.dependence import estimate_dependence, group_labels, sum_groups
from scalelab.laws.trust.profile import profile_params
from scalelab.laws.trust.uncertainty import bootstrap_fit, central_interval
from tests.laws.examples import QUICKSTART_LIKE, posed, study
from tests.quick import others_slow

LEAST_SQUARES = Objective("mse_log", np.inf)


def constant(N, *, E: Coefficient):
    """L = E"""
    return E + 0 * N


def fit_constant(errors, objective=LEAST_SQUARES):
    columns = {"N": np.arange(1.0, len(errors) + 1)}
    problem = pose_problem(law_of(constant), columns, 2 * np.exp(errors), objective)
    return problem, minimise_objective(problem)


def draw_errors(groups, each, group_sd, row_sd, seed=0):
    random = np.random.default_rng(seed)
    return np.repeat(group_sd * random.standard_normal(groups), each) + row_sd * random.standard_normal(groups * each)


def test_equal_groups_about_one_mean_are_the_analysis_of_variance():
    """The group's variance is (mean square between - mean square within) / n, the degrees of freedom G - 1."""
    errors, labels = draw_errors(6, 5, 0.02, 0.005), np.repeat(np.arange(6), 5)
    problem, best = fit_constant(errors)
    table = errors.reshape(6, 5)
    within = np.sum((table - table.mean(axis=1, keepdims=True)) ** 2) / 24
    between = 5 * np.sum((table.mean(axis=1) - errors.mean()) ** 2) / 5
    dependence = estimate_dependence(problem, best, labels)
    assert dependence.row_sd**2 == pytest.approx(within, rel=1e-6)
    assert dependence.group_sd**2 == pytest.approx((between - within) / 5, rel=1e-6)
    variance = {"group": 2 * (between**2 / 5 + within**2 / 24) / 25, "row": 2 * within**2 / 24}
    np.testing.assert_allclose(np.diag(dependence.uncertainty), list(variance.values()), rtol=1e-5)
    assert dependence.parameter_dof("E") == pytest.approx(5, rel=1e-5)
    effect = between / (dependence.group_sd**2 + dependence.row_sd**2)
    assert dependence.design_effect("E") == pytest.approx(effect, rel=1e-6)


def test_the_profile_of_a_mean_is_students_interval_of_the_groups_means():
    errors, labels = draw_errors(6, 5, 0.02, 0.005), np.repeat(np.arange(6), 5)
    problem, best = fit_constant(errors)
    dependence = estimate_dependence(problem, best, labels)
    low, high = profile_params(problem, best, 0.9, dependence=dependence)["E"].interval
    means = errors.reshape(6, 5).mean(axis=1)
    half = np.sqrt(f_distribution.ppf(0.9, 1, 5) * means.var(ddof=1) / 6)
    assert np.log([low / 2, high / 2]) == pytest.approx([errors.mean() - half, errors.mean() + half], abs=2e-5)
    boot = bootstrap_fit(problem, best, 4000, dependence=dependence)
    ends = np.log(np.array(central_interval(boot.params["E"], 0.9)) / 2)
    assert ends == pytest.approx([errors.mean() - half, errors.mean() + half], abs=0.1 * half)


ERRORS = [(0.005, 0.001), (0.0, 0.005), (0.01, 0.003)]


@pytest.mark.full
@pytest.mark.parametrize(("group_sd", "row_sd"), others_slow(lambda group_sd, _: group_sd < 0.01, ERRORS))
def test_estimates_are_right_on_average_though_the_law_is_fitted(group_sd, row_sd):
    """Unequal groups and five fitted parameters: the mean of 150 estimates is the truth, within three of its errors."""
    N, D, _ = study(QUICKSTART_LIKE, 0.0, sizes=6)
    labels = np.repeat(np.arange(8), 3)
    rows = np.r_[0:20, 22:24]
    N, D, labels = N[rows], D[rows], labels[rows]
    estimates = []
    for seed in range(150):
        random = np.random.default_rng(seed)
        errors = group_sd * random.standard_normal(8)[labels] + row_sd * random.standard_normal(len(rows))
        problem = posed(N, D, np.exp(errors) * study_law(N, D), delta=np.inf)
        dependence = estimate_dependence(problem, minimise_objective(problem), labels)
        estimates.append((dependence.group_sd**2, dependence.row_sd**2))
    mean, error = np.mean(estimates, axis=0), np.std(estimates, axis=0) / np.sqrt(150)
    truth = np.array([group_sd, row_sd]) ** 2
    if group_sd:
        assert np.all(np.abs(mean - truth) < 3 * error + 0.03 * truth)
    else:
        assert mean[0] / truth[1] < 0.2  # cut off at zero, so not zero on average


def study_law(N, D):
    E, A, B, alpha, beta = QUICKSTART_LIKE
    return E + A / N**alpha + B / D**beta


def test_copies_of_runs_are_no_more_runs():
    """Five equal checkpoints a run: intervals as wide as those of the runs alone, and far wider than of 100 rows."""
    N, D, loss = study(QUICKSTART_LIKE, 0.01, seed=2)
    alone, many = posed(N, D, loss), posed(*(np.repeat(column, 5) for column in (N, D, loss)))
    best = minimise_objective(many)
    grouped = estimate_dependence(many, best, np.repeat(np.arange(20), 5))
    boots = {
        "runs": bootstrap_fit(alone, minimise_objective(alone), count=300),
        "grouped": bootstrap_fit(many, best, count=300, dependence=grouped),
        "rows": bootstrap_fit(many, best, count=300),
    }
    widths = {name: np.ptp(central_interval(boot.params["E"], 0.9)) for name, boot in boots.items()}
    assert widths["grouped"] == pytest.approx(widths["runs"], rel=0.35)
    assert widths["rows"] < 0.6 * widths["grouped"]
    assert np.std(boots["grouped"].noise) == pytest.approx(np.std(boots["runs"].noise), rel=0.35)


def test_a_huber_score_of_gaussian_errors_has_its_closed_moments():
    """The rise for one mean under Huber's delta: E[psi^2] / P(|r| < delta) x design effect x F / 2, by quadrature."""
    errors, labels = draw_errors(40, 5, 0.004, 0.003), np.repeat(np.arange(40), 5)
    problem, best = fit_constant(errors, huber_log(0.002))
    dependence = estimate_dependence(problem, best, labels)
    random = np.random.default_rng(1)
    groups = dependence.group_sd * random.standard_normal(200_000)
    pair = [np.clip(groups + dependence.row_sd * random.standard_normal(200_000), -0.002, 0.002) for _ in range(2)]
    slope = np.mean(np.abs(groups + dependence.row_sd * random.standard_normal(200_000)) < 0.002)
    effect = 1 + np.mean(pair[0] * pair[1]) / np.mean(pair[0] ** 2) * 4
    rise = np.mean(pair[0] ** 2) / slope * effect * f_distribution.ppf(0.9, 1, dependence.parameter_dof("E")) / 2
    assert dependence.objective_rise("E", problem.objective, 0.9) == pytest.approx(rise, rel=0.02)


def test_labels_are_numbered_as_they_appear_and_refused_by_shape():
    assert group_labels(["b", "a", "b"], 3).tolist() == [0, 1, 0]
    np.testing.assert_array_equal(sum_groups(np.array([0, 1, 0]), np.array([1.0, 2.0, 4.0])), [5.0, 2.0])
    with pytest.raises(BadInput, match="2 group labels for 3 runs"):
        group_labels([1, 2], 3)
    problem, best = fit_constant(draw_errors(2, 3, 0.01, 0.01))
    with pytest.raises(BadInput, match="all 6 rows belong to one run"):
        estimate_dependence(problem, best, np.zeros(6), "run")
