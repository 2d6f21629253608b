"""GaLore and APOLLO against their Algorithms in float64; APOLLO's random projections are those that were drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.optim import apollo
from scalelab.optim.galore import GaloreState, leading_singular_vectors
from tests.optim.frame import assert_follows, by_chain, kept_bytes, problem, rates, setting
from tests.optim.hidden import adam, by_matrix, separated
from tests.quick import one_in

KEYS = ("beta1", "beta2", "eps")


def assert_singular_vectors(p, g):
    """p [small, rank] is what an fp32 SVD of g can give, by Wedin's bound: sin(angle) <= |error of g| / gap.

    A backward stable SVD solves g + error exactly, |error| <= rows x eps x |g| (LAPACK Users' Guide, sec. 4.9.1).
    """
    u, s, _ = np.linalg.svd(g)
    gaps = np.array([np.min(np.abs(s[i] - np.delete(s, i))) for i in range(p.shape[1])])
    rounding = len(g) * np.finfo(np.float32).eps
    cosines = np.sum(u[:, : p.shape[1]] * p, axis=0)
    sines = np.linalg.norm(p - u[:, : p.shape[1]] * cosines, axis=0)
    np.testing.assert_array_less(sines, rounding * s[0] / gaps)
    # What comes out of rows^2 plane rotations or as many terms of reflections is as long as what went in, but for their
    # rounding (Higham 2002, Lemma 19.3).
    np.testing.assert_allclose(np.abs(cosines), 1, atol=rounding * len(g))
    assert np.all(np.take_along_axis(p, np.argmax(np.abs(p), axis=0)[None], 0) > 0)


def by_galore(h, declared, params, gradients, lrs, every, rank, projections):
    """Zhao et al. 2024, Alg. 2, which has rows <= columns; their sec. 4.2 projects the smaller side.

    P is the chain's own, `projections[name][step, layer]`, once it is seen to be the leading singular vectors: fp32
    knows them to 1e-5 here, and Adam multiplies that near a zero of P^T G, by (size / 3 eps)^0.5 over a matrix.
    """
    scale = float(h.optim.low_rank_scale)

    def direction(g, memory, t, place):
        if g.shape[0] > g.shape[1]:
            return direction(g.T, memory, t, place).T
        p = np.float64(projections[place[0]][t - 1, place[1]])
        if (t - 1) % every == 0:
            memory["p"] = p
            assert p.shape == (len(g), min(rank, len(g)))
            assert_singular_vectors(p, g)
        np.testing.assert_array_equal(p, memory["p"])
        return scale * p @ adam(p.T @ g, memory, t, *(float(getattr(h.optim, k)) for k in KEYS))

    return by_matrix(h, declared, params, gradients, lrs, direction)


def projections(state):
    """{name: P [layers, small, rank]} in a chain's state."""
    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, GaloreState))
    return next(part.projection for part in parts if isinstance(part, GaloreState))


@pytest.mark.parametrize(("every", "rank"), one_in(3, [(8, 4), (200, 4), (200, 128)]))
def test_thirty_steps_of_galore(every, rank):
    # eps is above the rounding of projected gradients, so that it doesn't decide the sign of entries near zero.
    changes = {"optim__every": every, "optim__rank": rank, "optim__weight_decay": 0.1, "optim__eps": 1e-4}
    static, h = setting("galore", **changes)
    declared, params, gradients = problem()
    gradients = separated(declared, gradients)
    after, used = by_chain(static, h, params, gradients, rates(0.02), watch=projections)
    expected = by_galore(h, declared, params, gradients, rates(0.02), every, rank, used)
    assert_follows(expected, after, params)


def test_leading_vectors_span_the_best_subspace():
    g = np.random.default_rng(0).normal(size=(3, 8, 20))
    p = np.float64(leading_singular_vectors(jnp.asarray(g, jnp.float32), 3))
    np.testing.assert_allclose(p.swapaxes(1, 2) @ p, np.broadcast_to(np.eye(3), (3, 3, 3)), atol=1e-5)
    left = np.linalg.norm(g - p @ (p.swapaxes(1, 2) @ g), axis=(1, 2)) ** 2
    np.testing.assert_allclose(left, np.sum(np.linalg.svd(g, compute_uv=False)[:, 3:] ** 2, axis=1), rtol=1e-5)


def by_apollo(h, declared, params, gradients, lrs, every, rank, tensor):
    """Zhu et al. 2024, Alg. 1, with the norm-growth limiter of sec. 3.2; the bias correction at the end, as in their
    code."""
    b1, b2, eps = (float(getattr(h.optim, k)) for k in KEYS)
    hidden = sorted(k for k, d in declared.items() if d.is_hidden_matrix)

    def direction(g, memory, t, place):
        if g.shape[0] > g.shape[1]:
            return direction(g.T, memory, t, place).T
        shape = (min(rank, g.shape[0]), g.shape[0])
        p = np.float64(
            apollo.random_projection(h.train.seed, hidden.index(place[0]), jnp.int32((t - 1) // every), shape)
        )
        r = p @ g
        m = memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * r
        v = memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * r**2
        n = m / (np.sqrt(v) + eps)
        if tensor:
            update = g * np.linalg.norm(n) / np.linalg.norm(r)
        else:
            update = g * np.array([np.linalg.norm(n[:, j]) / np.linalg.norm(r[:, j]) for j in range(g.shape[1])])
        size = np.linalg.norm(update)
        if "size" in memory and size / memory["size"] > 1.01:
            update = update / size * 1.01 * memory["size"]
        memory["size"] = np.linalg.norm(update)
        return float(h.optim.low_rank_scale) * np.sqrt(1 - b2**t) / (1 - b1**t) * update

    return by_matrix(h, declared, params, gradients, lrs, direction)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "every", "rank"),
    one_in(3, [("apollo", 8, 4), ("apollo", 200, 128), ("apollo_mini", 8, 1)]),
)
def test_thirty_steps_of_apollo(name, every, rank):
    static, h = setting(name, optim__every=every, optim__rank=rank, optim__weight_decay=0.1)
    declared, params, gradients = problem()
    gradients = [{k: x * 3 ** (i % 4) for k, x in g.items()} for i, g in enumerate(gradients)]  # the limiter has work
    expected = by_apollo(h, declared, params, gradients, rates(0.02), every, rank, name == "apollo_mini")
    assert_follows(expected, by_chain(static, h, params, gradients, rates(0.02))[0], params)


def test_projections_are_random_and_repeatable():
    """N(0, 1/rank), so that |P x| is |x| on average; another one for every parameter, turn and seed."""
    shape = (64, 128)
    p = apollo.random_projection(jnp.float32(7), 0, jnp.int32(0), shape)
    np.testing.assert_allclose(np.std(p), 64**-0.5, rtol=0.02)
    others = [(7, 1, 0), (7, 0, 1), (8, 0, 0)]
    drawn = [p, *(apollo.random_projection(jnp.float32(s), i, jnp.int32(turn), shape) for s, i, turn in others)]
    near = np.abs(np.corrcoef(np.reshape(drawn, (4, -1))) - np.eye(4))
    assert near.max() < 0.05
    np.testing.assert_array_equal(p, jax.jit(apollo.random_projection, static_argnums=(1, 3))(7.0, 0, 0, shape))


def test_a_zero_gradient_doesnt_hold_back_what_follows():
    g, zero = jnp.ones((1, 2, 3)), jnp.zeros((1, 2, 3))
    update, norm = apollo.scale_gradient(zero, zero[:, :1], zero[:, :1], jnp.ones(1), tensor=False)
    assert not update.any() and norm == 0
    update, norm = apollo.scale_gradient(g, g[:, :1], 2 * g[:, :1], norm, tensor=False)
    np.testing.assert_allclose(update, 2 * g)


@pytest.mark.parametrize("name", ["galore", "apollo", "apollo_mini"])
@pytest.mark.parametrize("rank", [1, 4, 128])
def test_state_bytes(name, rank):
    assert kept_bytes(name, optim__rank=rank) == kept_bytes(name, stated=True, optim__rank=rank)
