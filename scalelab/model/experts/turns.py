"""A device's experts on as many rows at a time as its buffer holds, until all are multiplied: none is dropped.

A device may get far more rows than the mean, so room for all of them costs many times what it mostly needs. A loop
takes them in turns instead: one, unless the device has more than the buffer's share. Its backward multiplies each turn
once more, so it stands where a forward is computed again anyway. Devices take different numbers of turns, so none
of them sends anything within a turn. In fp8 the rows of a turn have a scale of their own.

Shapes: R rows that arrived, D d_model, K experts of a row, E experts of the device.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.model.experts.local import ExpertWeight, LocalExperts, multiply_tokens
from scalelab.sharding import vary_like

Weights = tuple[jax.Array, ...]  # of each product, in the order in which they are applied
Units = dict[str, jax.Array]  # of hidden units: `measures.expert_measures`


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def multiply_in_turns(
    local: LocalExperts,
    names: tuple[str, ...],
    x_RD: jax.Array,
    experts_RK: jax.Array,
    weights_RK: jax.Array,
    products: Weights,
    due: jax.Array | None,
) -> tuple[jax.Array, Units | None]:
    """Each row's sum of its experts, and with `due` what is measured of the hidden units; as `multiply_tokens`.

    `products`: the weights of those `names`; delayed scaling, which has more, is not there on several devices.
    """
    return _forward(local, names, x_RD, experts_RK, weights_RK, products, due)[0]


def _forward(local, names, x_RD, experts_RK, weights_RK, products, due):
    def turn(i: jax.Array, carry: Any) -> Any:
        y_RD, _, units = _multiply_turn(local, names, i, x_RD, experts_RK, weights_RK, products, due)
        return (carry[0] + y_RD, _add_units(carry[1], units))

    like = x_RD, experts_RK, weights_RK, *products
    shapes = jax.eval_shape(functools.partial(_multiply_turn, local, names, 0), *like[:3], products, due)
    zeros = jax.tree.map(lambda s: vary_like(jnp.zeros(s.shape, s.dtype), *like), (shapes[0], shapes[2]))
    given = x_RD, experts_RK, weights_RK, products
    return jax.lax.fori_loop(0, _count_turns(local, experts_RK), turn, zeros), given


def _backward(local, names, residuals, cotangents):
    x_RD, experts_RK, weights_RK, products = residuals

    def turn(i: jax.Array, carry: Any) -> Any:
        def multiply(x_RD: jax.Array, weights_RK: jax.Array, products: Weights) -> jax.Array:
            return _multiply_turn(local, names, i, x_RD, experts_RK, weights_RK, products, None)[0]

        _, pull = jax.vjp(multiply, x_RD, weights_RK, products)
        return jax.tree.map(jnp.add, carry, pull(cotangents[0]))

    given = x_RD, weights_RK, products
    zeros = jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), x), given)
    dx_RD, dweights_RK, dproducts = jax.lax.fori_loop(0, _count_turns(local, experts_RK), turn, zeros)
    return dx_RD, None, dweights_RK, dproducts, None


multiply_in_turns.defvjp(_forward, _backward)


def _count_turns(local: LocalExperts, experts_RK: jax.Array) -> jax.Array:
    return -(-jnp.sum(experts_RK < local.n_experts) // local.most)


def _multiply_turn(
    local: LocalExperts,
    names: tuple[str, ...],
    turn: Any,
    x_RD: jax.Array,
    experts_RK: jax.Array,
    weights_RK: jax.Array,
    products: Weights,
    due: jax.Array | None,
) -> tuple[jax.Array, jax.Array, Units | None]:
    weights = {name: ExpertWeight(w_ENO) for name, w_ENO in zip(names, products, strict=True)}
    return multiply_tokens(local, x_RD, experts_RK, weights_RK, weights, due, first=turn * local.most)


def _add_units(before: Units | None, now: Units | None) -> Units | None:
    """Measures of two turns' hidden units: of squares the sum, else the largest."""
    if before is None or now is None:
        return None
    add = {"mlp_squares": jnp.add, "unit_max": jnp.maximum}
    return {name: add[name](x, now[name]) for name, x in before.items()}
