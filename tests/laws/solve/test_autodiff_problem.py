"""Derivatives by hand and by autodiff against each other and against finite differences."""

import numpy as np
import pytest

from scalelab.laws.law.names import LAWS, load_law
from scalelab.laws.law.objective import OBJECTIVES, load_objective
from scalelab.laws.solve import newton
from scalelab.laws.solve.autodiff_problem import AutodiffProblem
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.power_law_problem import PowerLawProblem
from scalelab.laws.solve.repetition_problem import RepetitionProblem
from tests.laws.examples import QUICKSTART_LIKE, study
from tests.laws.truths import TRUTHS, columns_for
from tests.quick import others_slow

BUILDERS = (PowerLawProblem, AutodiffProblem)


def chinchilla(build, objective):
    N, D, loss = study(QUICKSTART_LIKE, 0.01, seed=3)
    law = load_law("chinchilla")
    points = build(law, {"N": N, "D": D}, loss, objective, ())
    x = points.from_params(QUICKSTART_LIKE._asdict()) * np.random.default_rng(5).uniform(0.9, 1.1, (6, 5))
    return points, x, np.random.default_rng(4).integers(0, 4, (6, len(N))).astype(float)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_by_hand_and_by_autodiff_are_one_problem(name):
    (hand, x, weights), (auto, _, _) = (chinchilla(build, load_objective(name)) for build in BUILDERS)
    np.testing.assert_allclose(auto.from_params(hand.to_params(x)), x, rtol=1e-12)
    np.testing.assert_allclose(hand.value(x, weights), auto.value(x, weights), rtol=1e-10)
    for ours, theirs in zip(hand.derivatives(x, weights), auto.derivatives(x, weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10 * np.abs(theirs).max())
    exponents = x[:, 3:]
    for ours, theirs in zip(hand.basis(exponents), auto.basis(exponents), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    assert hand.lower.tolist() == auto.lower.tolist() and hand.upper.tolist() == auto.upper.tolist()


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name == "huber_log", ["huber_log", "mse"]))
def test_the_law_of_repeated_data_is_by_hand_what_autodiff_has(name):
    law, columns = load_law("data_constrained"), columns_for("data_constrained")
    random = np.random.default_rng(0)
    target = law(columns, TRUTHS["data_constrained"]) * np.exp(0.01 * random.standard_normal(32))
    objective = load_objective(name, 0.01 if name == "huber_log" else None)
    hand, auto = (build(law, columns, target, objective) for build in (RepetitionProblem, AutodiffProblem))
    x = hand.from_params(TRUTHS["data_constrained"])[None] * random.uniform(0.93, 1.07, (6, 7))
    weights = random.integers(0, 3, (6, 32)).astype(float)
    np.testing.assert_allclose(auto.from_params(hand.to_params(x)), x, rtol=1e-12)
    np.testing.assert_allclose(hand.value(x, weights), auto.value(x, weights), rtol=1e-9)
    for ours, theirs in zip(hand.derivatives(x, weights), auto.derivatives(x, weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())
    assert type(pose_problem(law, columns, target, objective)) is RepetitionProblem


def test_sums_of_powers_are_written_out_and_the_rest_is_not():
    N, D, loss = study(QUICKSTART_LIKE)
    by_hand, autodiff = BUILDERS
    for name, kind, build in (
        ("chinchilla", "huber_log", by_hand),
        ("chinchilla", "mse", by_hand),
        ("kaplan", "mse", autodiff),
    ):
        points = pose_problem(load_law(name), {"N": N, "D": D}, loss, load_objective(name=kind))
        assert type(points) is build


# Long to compile, of forms and objectives that others have; `make test-slow` takes them.
LONG = {"data_constrained", "broken_power_2", "expert_count", "precision", "granularity", "broken_power"}
LONG |= {"overtraining"}
PAIRS = [(name, law.objective) for name, law in LAWS.items()]
PAIRS += [(name, "mse") for name in ("saturating", "kaplan", "farseer")]
QUICK = ("chinchilla", "farseer", "width_depth", "critical_batch", "sparsity")


def marked(name, kind):
    quick = name in QUICK and kind == LAWS[name].objective
    marks = [pytest.mark.slow] * (name in LONG) or [pytest.mark.full] * (not quick)
    return pytest.param(name, kind, marks=marks)


@pytest.mark.parametrize(("name", "kind"), [marked(*pair) for pair in PAIRS])
def test_gradient_and_hessian_equal_finite_differences(name, kind):
    """Every law, at points around its published parameters, residuals on both sides of the threshold."""
    law = load_law(name)
    columns = columns_for(name)
    target = law(columns, TRUTHS[name]) * np.exp(0.01 * np.random.default_rng(0).standard_normal(32))
    points = pose_problem(law, columns, target, load_objective(kind, 0.01 if kind.startswith("huber") else None))
    x = points.from_params(TRUTHS[name])[None] * np.random.default_rng(1).uniform(0.98, 1.02, (4, len(law.params)))
    weights = np.random.default_rng(2).integers(0, 3, (4, 32)).astype(float)
    gradient, _, hessian = points.derivatives(x, weights)
    for i in range(x.shape[1]):
        step = np.zeros_like(x)
        step[:, i] = 1e-6 * np.maximum(np.abs(x[:, i]), 0.01)
        high, low = points.derivatives(x + step, weights)[0], points.derivatives(x - step, weights)[0]
        slope = (points.value(x + step, weights) - points.value(x - step, weights)) / (2 * step[:, i])
        np.testing.assert_allclose(gradient[:, i], slope, rtol=1e-4, atol=1e-5 * np.abs(gradient[:, i]).max())
        bend = (high - low) / (2 * step[:, i, None])
        np.testing.assert_allclose(hessian[:, i], bend, rtol=1e-3, atol=1e-4 * np.abs(hessian[:, i]).max())


def test_the_majoriser_never_lies_below_the_gauss_newton_part():
    """What makes an IRLS step safe: IRLS weights are at least Huber's own curvature."""
    points, x, weights = chinchilla(PowerLawProblem, load_objective("huber_log", 3e-3))
    _, majoriser, hessian = points.derivatives(x, weights)
    assert (np.linalg.eigvalsh(majoriser) >= -1e-12).all()
    assert (np.einsum("rii->r", majoriser) > np.einsum("rii->r", hessian)).any()


def test_a_chunk_that_is_not_full_changes_no_number():
    points, x, weights = chinchilla(AutodiffProblem, load_objective("huber_log"))
    many = np.tile(x, (12, 1))  # 72 problems: two chunks and a part
    result = points.value(many, np.tile(weights, (12, 1)))
    np.testing.assert_array_equal(result, np.tile(points.value(x, weights), 12))


def test_both_ways_end_at_one_optimum():
    (hand, x, weights), (auto, _, _) = (chinchilla(build, load_objective("huber_log")) for build in BUILDERS)
    ours, theirs = newton.descend(hand, x, weights), newton.descend(auto, x, weights)
    np.testing.assert_allclose(ours.objective, theirs.objective, rtol=1e-8)
