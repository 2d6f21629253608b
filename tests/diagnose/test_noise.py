"""The noise scale: against every pair of gradients by hand, a closed form, and the gradient of the whole batch."""

import math

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.noise.estimate import estimate_noise_scale, ratio_interval
from scalelab.diagnose.noise.measure import measure_noise
from scalelab.diagnose.probes.subject import load_subject
from scalelab.train.single import train_single
from scalelab.train.step.gradients import compute_gradients, document_ends
from tests.train.resume.test_compatibility import config


def by_pairs(gradients):
    """(tr Sigma, |G|^2) from the products of all pairs of different rows: the U-statistics."""
    products = gradients @ gradients.T
    n = len(gradients)
    signal = (products.sum() - np.trace(products)) / (n * (n - 1))
    return np.trace(products) / n - signal, signal


def estimate(gradients):
    return estimate_noise_scale((gradients**2).sum(axis=1), gradients @ gradients.sum(axis=0))


def regression_gradients(rng, n, d=50, away=1.0, noise=0.1728**0.5):
    """Gradients of (x . delta - noise)^2 / 2 with x ~ N(0, I)."""
    x = rng.standard_normal((n, d))
    return x * (x @ np.full(d, away / d**0.5) - noise * rng.standard_normal(n))[:, None]


def test_estimates_and_errors_are_those_of_all_pairs_and_of_leaving_each_out():
    gradients = np.random.default_rng(0).standard_normal((20, 6)) + 0.5
    result, (trace, signal) = estimate(gradients), by_pairs(gradients)
    assert (result.trace, result.signal, result.scale) == pytest.approx((trace, signal, trace / signal))
    left_out = np.array([by_pairs(np.delete(gradients, i, axis=0)) for i in range(20)])
    errors = np.sqrt(19 / 20 * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    assert (result.trace_error, result.signal_error) == pytest.approx(tuple(errors))
    single, whole = (gradients**2).sum(axis=1).mean(), (gradients.mean(axis=0) ** 2).sum()
    assert result.signal == pytest.approx((20 * whole - single) / 19)  # McCandlish et al. 2018, equation A.2
    assert result.trace == pytest.approx((single - whole) / (1 - 1 / 20))


def test_intervals_hold_the_closed_form_of_linear_regression():
    rng, d, noise = np.random.default_rng(1), 50, 0.1728
    truth = d * (1 + noise) + 1  # tr Sigma / |G|^2 = (d (|delta|^2 + s^2) + |delta|^2) / |delta|^2
    results = [estimate(regression_gradients(rng, 256)) for _ in range(300)]
    assert np.mean([r.trace for r in results]) / np.mean([r.signal for r in results]) == pytest.approx(truth, rel=0.03)
    assert 0.91 < np.mean([r.low <= truth <= r.high for r in results]) < 0.99
    assert np.std([r.trace for r in results]) == pytest.approx(np.mean([r.trace_error for r in results]), rel=0.2)


def test_noise_alone_has_no_upper_end():
    results = [estimate(regression_gradients(np.random.default_rng(i), 64, away=0.0)) for i in range(20)]
    assert sum(math.isinf(r.high) for r in results) >= 17
    assert all(r.low < r.scale <= r.high for r in results)


def test_the_ends_of_a_ratio_are_where_it_is_just_within_its_error():
    covariance = np.array([[4.0, 0.3], [0.3, 0.01]])
    low, high = ratio_interval(100.0, 1.0, covariance)
    for end in (low, high):
        spread = covariance[0, 0] - 2 * end * covariance[0, 1] + end**2 * covariance[1, 1]
        assert abs(100 - end) == pytest.approx(1.959964 * spread**0.5, rel=1e-6)
    assert low < 100 < high
    assert ratio_interval(100.0, 0.1, covariance)[1] == math.inf
    assert ratio_interval(1.0, 0.1, covariance) == (0.0, math.inf)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four steps whose batch grows from 2 to 4 rows, with attention within documents, so that rows count unevenly."""
    folder = tmp_path_factory.mktemp("noise") / "run"
    changed = {"data__documents": "mask", "train__global_batch": 4, "train__accumulate": 2, "train__z_loss": 1e-3,
               "schedule__batch_stages": "2; 3: 4", "optim__eps": 1e-6}  # fmt: skip
    train_single(config(**changed), folder)
    return folder


@pytest.mark.full
def test_a_step_is_measured_as_by_hand(run):
    evidence = gather_evidence(run)
    result = measure_noise(evidence, 2, 3)
    subject = load_subject(evidence, 2)
    rows = np.concatenate([np.asarray(subject.batch(step)) for step in (2, 3, 4)])
    rows = rows[rows[:, 0] >= 0]
    static = subject.static.__class__(**{**vars(subject.static), "accumulate": 1})
    ends, z_loss = document_ends(static, subject.h), subject.h.train.z_loss
    of = jax.jit(lambda tokens: compute_gradients(static, subject.params, tokens, z_loss, ends=ends))
    each = [of(row[None]) for row in rows]
    tokens = np.array([sums.tokens for sums, _ in each])
    gradients = np.stack([ravel_pytree(grads)[0] for _, grads in each]) * (tokens / tokens.mean())[:, None]
    assert len(set(tokens)) > 1 and (result.n, result.batch) == (10, 2)
    assert result.sequence_tokens == pytest.approx(tokens.mean())
    assert result.simple == pytest.approx(estimate(gradients), rel=1e-4)
    sums, whole = of(rows)
    np.testing.assert_allclose(gradients.mean(axis=0), ravel_pytree(whole)[0], atol=1e-6)
    assert result.loss == pytest.approx(float(sums.nll / sums.tokens), rel=1e-5)

    second = next(each for each in jax.tree.leaves(subject.state.opt_state, is_leaf=has_nu) if has_nu(each))
    roots = jax.tree.map(lambda v: (np.sqrt(v / (1 - 0.95**2)) + 1e-6) ** -0.5, second.nu)
    roots["embed"], roots["head"] = (jax.tree.map(np.zeros_like, roots[name]) for name in ("embed", "head"))
    assert result.adam == pytest.approx(estimate(gradients * np.asarray(ravel_pytree(roots)[0])), rel=1e-3)


def has_nu(node):
    return hasattr(node, "nu")
