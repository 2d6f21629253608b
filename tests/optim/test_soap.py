"""SOAP against Algorithm 3 in float64, from the same first bases; and those bases against what they are by
definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.optim import matrices
from scalelab.optim.chain import build_optimizer_chain
from scalelab.optim.soap import power_iteration_step, sorted_eigenvectors
from tests.optim.frame import assert_follows, by_chain, kept_bytes, nested, problem, rates, setting
from tests.optim.hidden import adam, by_matrix
from tests.quick import one_in


def first_bases(static, h, params, gradients):
    """{(name, layer): (left, right)} after the first step. Where the gradient has no full rank some of it is
    arbitrary."""
    own = by_chain(static, h, params, gradients[:1], [0.0])[1]
    state = next(
        part for part in jax.tree.leaves(own, is_leaf=lambda x: hasattr(x, "left_basis")) if hasattr(part, "left_basis")
    )
    return {
        (k, i): tuple(np.linalg.qr(np.float64(side[k][i]))[0] for side in (state.left_basis, state.right_basis))
        for k in state.left_basis
        for i in range(len(state.left_basis[k]))
    }, state


def by_soap(h, declared, params, gradients, lrs, bases, every):
    """Vyas et al. 2024, Alg. 3 and 4, with the bias correction, the idle first step and the sorting of their code."""
    b1, b2, eps = (float(getattr(h.optim, k)) for k in ("beta1", "beta2", "eps"))

    def sorted_power_step(statistic, q):
        order = np.argsort(-np.diag(q.T @ statistic @ q))
        return np.linalg.qr(statistic @ q[:, order])[0], order

    def direction(g, memory, t, place):
        if g.shape[0] > g.shape[1]:
            return direction(g.T, memory, t, place).T
        if t == 1:
            memory |= {"q": bases[place], "m": 0 * g, "v": 0 * g, "l": (1 - b2) * g @ g.T, "r": (1 - b2) * g.T @ g}
            return 0 * g
        ql, qr = memory["q"]
        m = memory["m"] = b1 * memory["m"] + (1 - b1) * g
        v = memory["v"] = b2 * memory["v"] + (1 - b2) * (ql.T @ g @ qr) ** 2
        step = t - 1
        n = (ql.T @ m @ qr) / (1 - b1**step) / (np.sqrt(v / (1 - b2**step)) + eps)
        memory["l"] = b2 * memory["l"] + (1 - b2) * g @ g.T
        memory["r"] = b2 * memory["r"] + (1 - b2) * g.T @ g
        if step % every == 0:
            (new_l, rows), (new_r, columns) = sorted_power_step(memory["l"], ql), sorted_power_step(memory["r"], qr)
            memory |= {"q": (new_l, new_r), "v": v[rows][:, columns]}
        return ql @ n @ qr.T

    return by_matrix(h, declared, params, gradients, lrs, direction)


@pytest.mark.parametrize("every", one_in(2, [10, 3]))
def test_thirty_steps_of_soap(every):
    # eps is above the rounding of rotated gradients, so that it doesn't decide the sign of entries near zero.
    static, h = setting("soap", optim__every=every, optim__eps=1e-4)
    declared, params, gradients = problem()
    bases, _ = first_bases(static, h, params, gradients)
    expected = by_soap(h, declared, params, gradients, rates(0.02), bases, every)
    assert_follows(expected, by_chain(static, h, params, gradients, rates(0.02))[0], params)


def test_the_first_bases_are_eigenvectors_of_the_first_statistics():
    static, h = setting("soap")
    _, params, gradients = problem()
    bases, state = first_bases(static, h, params, gradients)
    for (k, i), sides in bases.items():
        for q, statistic in zip(sides, (state.left[k][i], state.right[k][i]), strict=True):
            values = q.T @ np.float64(statistic) @ q
            size = np.abs(values).max()
            np.testing.assert_allclose(values, np.diag(np.diag(values)), atol=3e-6 * size, err_msg=k)
            assert np.all(np.diff(np.diag(values)) < 3e-6 * size)  # the largest first
    assert not any(x.any() for x in jax.tree.leaves((state.m, state.v)))  # it takes no step, and none of its gradient


@pytest.mark.full
def test_signs_of_eigenvectors_do_not_matter():
    """LAPACK and rounding choose them: updates from bases with random signs are the same bits, before a refresh and
    behind it."""
    static, h = setting("soap", optim__every=2)
    _, params, gradients = problem()
    chain = build_optimizer_chain(static, h, jnp.float32(0.02))
    step = jax.jit(lambda g, state: chain.update(g, state, nested(params)))
    random = np.random.default_rng(0)

    def flip(path, x):
        is_basis = "_basis" in jax.tree_util.keystr(path)
        return x * random.choice([-1.0, 1.0], (x.shape[0], 1, x.shape[2])).astype(np.float32) if is_basis else x

    _, state = step(nested(gradients[0]), chain.init(nested(params)))
    other = jax.tree_util.tree_map_with_path(flip, state)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True))
    for gradient in gradients[1:4]:
        (moves, state), (moves_of_flipped, other) = step(nested(gradient), state), step(nested(gradient), other)
        jax.tree.map(np.testing.assert_array_equal, moves_of_flipped, moves)
        assert all(x.any() for x in jax.tree.leaves(moves))


def test_with_identity_bases_it_is_adam(monkeypatch):
    monkeypatch.setattr(
        "scalelab.optim.soap.sorted_eigenvectors", lambda x: jnp.broadcast_to(jnp.eye(x.shape[-1]), x.shape)
    )
    static, h = setting("soap", optim__every=1000)
    declared, params, gradients = problem()
    b1, b2, eps = (float(getattr(h.optim, k)) for k in ("beta1", "beta2", "eps"))

    def direction(g, memory, t, place):
        return adam(g, memory, t - 1, b1, b2, eps) if t > 1 else 0 * g

    expected = by_matrix(h, declared, params, gradients, rates(0.02), direction)
    step = jax.jit(lambda g, state, params, lr: build_optimizer_chain(static, h, lr).update(g, state, params))
    now, state = nested(params), build_optimizer_chain(static, h, jnp.float32(0)).init(nested(params))
    for gradient, lr in zip(gradients, rates(0.02), strict=True):
        updates, state = step(nested(gradient), state, now, jnp.float32(lr))
        now = jax.tree.map(jnp.add, now, updates)
    actual = {k: now["blocks"]["mlp"][k.split(".")[2]]["w"] for k in params if "mlp." in k}
    assert_follows(expected, actual, {k: params[k] for k in actual})


@pytest.mark.full
def test_power_steps_converge_to_the_eigenbasis():
    random = np.random.default_rng(0)
    q, _ = np.linalg.qr(random.normal(size=(3, 8, 8)))
    statistic = jnp.asarray(q * 2.0 ** -np.arange(8) @ q.swapaxes(1, 2), jnp.float32)
    basis = jnp.broadcast_to(jnp.eye(8), (3, 8, 8))
    for _ in range(40):
        basis, _ = power_iteration_step(statistic, basis)
    np.testing.assert_allclose(
        np.abs(np.einsum("bij,bik->bjk", basis, q)), np.broadcast_to(np.eye(8), (3, 8, 8)), atol=1e-4
    )
    np.testing.assert_allclose(np.abs(sorted_eigenvectors(statistic)), np.abs(q), atol=1e-4)


def test_state_bytes():
    assert kept_bytes("soap") == kept_bytes("soap", stated=True)
    assert matrices.folded_shape(problem()[0]["blocks.mlp.down.w"]) == (2, 16, 48)
