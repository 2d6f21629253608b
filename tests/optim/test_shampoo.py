"""Shampoo against Algorithm 1 in float64, in both forms of its statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.optim.shampoo import inverse_fourth_root
from tests.optim.frame import assert_follows, by_chain, kept_bytes, problem, rates, setting
from tests.optim.hidden import by_matrix, separated
from tests.quick import one_in


def root(statistic):
    values, vectors = np.linalg.eigh(statistic)
    return (vectors * values**-0.25) @ vectors.T


def by_shampoo(h, declared, params, gradients, lrs, every, averaged):
    """Gupta et al. 2018, Alg. 1: L_0 = eps I, L_t = L_{t-1} + G G^T; averaged: (1 - b2) sum b2^(t-s) G_s G_s^T / (1 -
    b2^t)."""
    b2, eps = float(h.optim.beta2), float(h.optim.eps)

    def direction(g, memory, t, place):
        rows, columns = g.shape
        if averaged:
            memory["l"] = b2 * memory.get("l", 0.0) + (1 - b2) * g @ g.T
            memory["r"] = b2 * memory.get("r", 0.0) + (1 - b2) * g.T @ g
            left, right = (memory[k] / (1 - b2**t) + eps * np.eye(n) for k, n in (("l", rows), ("r", columns)))
        else:
            left = memory["l"] = memory.get("l", eps * np.eye(rows)) + g @ g.T
            right = memory["r"] = memory.get("r", eps * np.eye(columns)) + g.T @ g
        if t <= every or (t - 1) % every == 0:
            memory["roots"] = root(left), root(right)
        return memory["roots"][0] @ g @ memory["roots"][1]

    return by_matrix(h, declared, params, gradients, lrs, direction)


@pytest.mark.full
@pytest.mark.parametrize(("every", "averaged"), one_in(3, [(1, False), (10, False), (4, True)]))
def test_thirty_steps_of_shampoo(every, averaged):
    static, h = setting("shampoo", optim__every=every, optim__averaged=averaged)
    declared, params, gradients = problem()
    # The least eigenvalue of a statistic is known to rows x eps x the largest, so its root to a quarter of eps x their
    # ratio: 4 here, of random square gradients up to 1e5 (seen on three BLAS kernels: 1.0e-5 to 1.6e-5 of the update).
    gradients = separated(declared, gradients)
    expected = by_shampoo(h, declared, params, gradients, rates(0.02), every, averaged)
    assert_follows(expected, by_chain(static, h, params, gradients, rates(0.02))[0], params)


def test_the_first_step_is_orthogonal():
    """(G G^T)^(-1/4) G (G^T G)^(-1/4) = U V^T."""
    g = np.random.default_rng(0).normal(size=(24, 24))
    u, _, vt = np.linalg.svd(g)
    g = u * np.linspace(1, 2, 24) @ vt
    left, right = (inverse_fourth_root(jnp.asarray(x, jnp.float32), 1e-12) for x in (g @ g.T, g.T @ g))
    np.testing.assert_allclose(left @ jnp.asarray(g, jnp.float32) @ right, u @ vt, atol=1e-5)


def test_zero_gradients_are_finite():
    static, h = setting("shampoo")
    _, params, gradients = problem()
    after, state = by_chain(static, h, params, [{k: 0 * g for k, g in gradients[0].items()}] * 2, [0.1, 0.1])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after, state)))


def test_state_bytes():
    assert kept_bytes("shampoo") == kept_bytes("shampoo", stated=True)
