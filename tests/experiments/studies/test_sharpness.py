"""Sharpness: the Hessian product against differences of the gradient, Lanczos against a dense matrix, Adam's roots."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from scalelab.diagnose.probes.sharpness import largest_eigenvalue
from scalelab.experiments.studies.sharpness import runs as study


@pytest.fixture(scope="module")
def small():
    """(weights, tokens) of a model of 2,200 parameters."""
    with pytest.MonkeyPatch.context() as patch:
        study.build_setting.cache_clear()
        for name, value in (("WIDTH", 4), ("ROWS", 2), ("SEQ_LEN", 8)):
            patch.setattr(study, name, value)
        yield study.start(0)
    study.build_setting.cache_clear()


@pytest.mark.full
def test_the_product_is_the_gradients_own_difference(small):
    params, tokens = small
    flat, restore = ravel_pytree(params)
    direction = jax.random.normal(jax.random.key(1), flat.shape) / flat.size**0.5
    product = study._hessian_vector(params, direction, tokens)
    gradient = jax.jit(lambda vector: ravel_pytree(study.mean_loss(restore(vector), tokens)[1])[0])
    size = 1e-3  # the norms of small embeddings bend sharply
    difference = (gradient(flat + size * direction) - gradient(flat - size * direction)) / (2 * size)
    assert np.linalg.norm(difference - product) < 0.02 * np.linalg.norm(product)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_lanczos_finds_the_top_of_a_spectrum_with_outliers(preconditioned):
    """Like a network's: a bulk around zero and a few large eigenvalues."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((300, 300)))
    matrix = (basis * np.concatenate([rng.standard_normal(295), [40, 30, 20, 12, 9]])) @ basis.T
    roots = np.exp(rng.standard_normal(300)) if preconditioned else np.ones(300)
    expected = np.linalg.eigvalsh(roots[:, None] * matrix * roots)[-1]
    wanted = jnp.asarray(roots[:, None] * matrix * roots, jnp.float32)
    assert largest_eigenvalue(lambda v: wanted @ v, 300, 20) == pytest.approx(expected, rel=1e-3)


def test_adams_roots_undo_its_own_step():
    """Adam's step from rest is the gradient times the roots squared times the learning rate."""
    gradient = {"a": jnp.array([0.3, -2.0]), "b": jnp.array([1e-3])}
    rule = study.make_rule("Adam", 0.1)
    updates, state = rule.update(gradient, rule.init(gradient))
    flat, _ = ravel_pytree(gradient)
    np.testing.assert_allclose(ravel_pytree(updates)[0], -0.1 * study.adam_roots(state) ** 2 * flat, rtol=1e-4)
    plain = study.make_rule("momentum 0.9", 0.1)
    updates, state = plain.update(gradient, plain.init(gradient))
    updates, _ = plain.update(gradient, state)
    np.testing.assert_allclose(updates["a"], -0.19 * gradient["a"], rtol=1e-5)
    assert isinstance(rule, optax.GradientTransformation)
