"""Rows of a device's experts in turns, against each row's own MLPs in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model.experts.exchange import AT_ONCE, Buffers, size_buffers, takes_turns
from scalelab.model.experts.local import LocalExperts
from scalelab.model.experts.turns import multiply_in_turns
from scalelab.precision.policy import FP32
from tests.model.shapes import shape

R, K, E, D, F = 24, 2, 4, 8, 5
NAMES = "up", "gate", "down"
LOADS = {
    "even": np.stack([np.arange(R) % E, (np.arange(R) + 1) % E], 1),
    "one": np.full((R, K), 2),
    "few": np.where(np.arange(R)[:, None] < 3, [[0, 3]], E),  # E: no expert of this device
    "none": np.full((R, K), E),
}


def own_mlps(x, weights, experts, up, gate, down):
    """The sum of each row's SwiGLUs, each with its own expert's weights beside it."""
    up, gate, down = (w[jnp.minimum(experts, E - 1)] for w in (up, gate, down))
    hidden = jax.nn.silu(jnp.einsum("rd,rkdf->rkf", x, gate)) * jnp.einsum("rd,rkdf->rkf", x, up)
    return jnp.einsum("rk,rkf,rkfd->rd", jnp.where(experts < E, weights, 0), hidden, down)


@pytest.mark.parametrize(
    "way", ["blocks", *(pytest.param(way, marks=pytest.mark.full) for way in ("loop", "products"))]
)
def test_every_row_is_multiplied_whatever_the_load_is(way):
    """With room for 7 of up to 48 rows: none, one or seven turns; the gradient of all inputs beside float64's."""
    random = np.random.default_rng(0)
    sizes = (R, D), (R, K), (E, D, F), (E, D, F), (E, F, D), (R, D)
    *given, out = (random.normal(size=size) for size in sizes)
    of = shape(block="experts", n_experts=16, experts_per_token=K, d_model=D, d_expert=F, expert_products=way)
    local = LocalExperts(of, FP32, E, 12, 7, in_turns=True)

    def in_turns(x, weights, experts, *products):
        return multiply_in_turns(local, NAMES, x, experts, weights, products, None)[0]

    def differentiated(function):
        return jax.jit(
            jax.value_and_grad(
                lambda *a, experts: jnp.sum(out.astype(a[0].dtype) * function(*a[:2], experts, *a[2:])), range(5)
            )
        )

    oracle, tried = map(differentiated, (own_mlps, in_turns))
    for name, experts in LOADS.items():
        with jax.enable_x64():
            expected = oracle(*given, experts=experts)
        answer = tried(*(np.float32(x) for x in given), experts=jnp.asarray(experts, jnp.int32))
        for ours, theirs in zip(jax.tree.leaves(answer), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5, err_msg=name)


def test_measures_are_those_of_all_turns():
    """The largest unit of each expert, and the sum of all squares."""
    random, experts = np.random.default_rng(1), LOADS["even"]
    x, weights, up, down = (random.normal(size=size) for size in ((R, D), (R, K), (E, D, F), (E, F, D)))
    of = shape(block="experts", n_experts=16, experts_per_token=K, d_model=D, d_expert=F, mlp="relu2")
    local = LocalExperts(of, FP32, E, 12, 7, in_turns=True)
    given = (np.float32(x), jnp.asarray(experts), np.float32(weights), (np.float32(up), np.float32(down)))
    units = multiply_in_turns(local, ("up", "down"), *given, jnp.asarray(True))[1]
    hidden = weights[..., None] * np.maximum(np.einsum("rd,rkdf->rkf", x, up[experts]), 0) ** 2
    assert float(units["mlp_squares"]) == pytest.approx(np.sum(hidden**2), rel=1e-5)
    most = [np.abs(hidden[experts == e]).max(axis=0) for e in range(E)]
    np.testing.assert_allclose(units["unit_max"].reshape(E, F), most, rtol=1e-5)


def test_turns_are_where_a_forward_is_run_again_and_rows_may_be_many_more_than_the_mean():
    assert size_buffers(64, 16, 2, 4, 0.0, True) == Buffers(4, 4, 64, int(AT_ONCE * 128), in_turns=True)
    assert size_buffers(64, 4, 1, 1, 0.0, True) == Buffers(1, 4, 64, 64)  # all rows are the mean
    assert not size_buffers(64, 16, 2, 4, 1.0, True).in_turns  # a bounded buffer drops what is beyond
    of = shape(block="experts", n_experts=16)
    assert [takes_turns(of, staged, "gpu") for staged in (False, True)] == [False, True]
    assert not takes_turns(of, True, "tpu")  # whose ragged product ends with the rows
    assert takes_turns(shape(block="experts", n_experts=16, remat="full"), False, "cpu")
    assert not takes_turns(shape(block="experts", n_experts=16, remat="full", expert_capacity=1.0), True, "gpu")
