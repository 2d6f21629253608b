"""Measured: a CPU computes an expert's whole MLP a block of rows at a time, whose hidden units then stay in its cache.

A layer of 8 experts, 2 a token, d_model 256, d_expert 512 and 2,048 tokens then takes 0.8 of the CPU seconds of three
products over all rows (checks/results/expert_products.md). The numbers are those of `expert_product`, rounded at the
same places. fp8 needs all of an operand for its scale, and measures of hidden units all of them: both go without.

Shapes: P rows, M rows of a block, E experts, D d_model, F d_expert.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.model.experts.rows import Rows
from scalelab.model.experts.ways import block_rows
from scalelab.model.products.operands import cast_operand
from scalelab.model.products.saved import name_product
from scalelab.precision.policy import Policy
from scalelab.sharding import Weight, gradient_like, vary_like, weight_master, weight_values

Activation = Callable[..., jax.Array]  # of one or two products into the hidden units
_read, _write = jax.lax.dynamic_slice_in_dim, functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)


def weigh_units(activation: Activation, weight_P: jax.Array, *inner: jax.Array) -> jax.Array:
    """The hidden units of rows, from the first products, times the rows' weights."""
    return (activation(*inner) * weight_P[:, None]).astype(inner[0].dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def fused_experts(
    x_PD: jax.Array, weight_P: jax.Array, weights: Sequence[Weight], rows: Rows, activation: Activation, policy: Policy
) -> jax.Array:
    """Each row's expert's MLP, whose hidden units are multiplied by the row's weight; `weights`: up, gate, down."""
    return _forward(x_PD, weight_P, weights, rows, activation, policy)[0]


def _forward(x_PD, weight_P, weights, rows, activation, policy):
    block, form = block_rows(rows.position_TK.size, rows.start_E.size), x_PD.dtype
    cast = functools.partial(_cast, policy, policy.forward)

    @jax.custom_batching.sequential_vmap
    def run(x_PD, weight_P, weights, start_E, size_E):
        def of_expert(e, carry):
            *inner, last = [w[e] for w in weights]

            def of_block(i, carry):
                (y_PD, hidden), first = carry, start_E[e] + i * block
                x_MD, weight_M = _read(x_PD, first, block), _read(weight_P, first, block)
                units = [_dot(x_MD, w_DF).astype(form) for w_DF in inner]
                y_MD = _dot(cast(weigh_units(activation, weight_M, *units)), last).astype(form)
                return _write(y_PD, y_MD, first), [_write(h, u, first) for h, u in zip(hidden, units, strict=True)]

            return jax.lax.fori_loop(0, -(-size_E[e] // block), of_block, carry)

        zeros = lambda width: vary_like(jnp.zeros((x_PD.shape[0], width), form), x_PD, *weights)  # noqa: E731
        hidden = [zeros(w.shape[2]) for w in weights[:-1]]
        return jax.lax.fori_loop(0, size_E.size, of_expert, (zeros(x_PD.shape[1]), hidden))

    x_PD = cast(x_PD)
    y_PD, hidden = run(x_PD, weight_P, [cast(weight_values(w)) for w in weights], rows.start_E, rows.size_E)
    return name_product(y_PD), (x_PD, weight_P, weights, rows, [name_product(h_PF) for h_PF in hidden])


def _backward(activation, policy, residuals, dy_PD):
    x_PD, weight_P, weights, rows, hidden = residuals
    block, form = block_rows(rows.position_TK.size, rows.start_E.size), dy_PD.dtype
    cast, cast_back = (functools.partial(_cast, policy, name) for name in (policy.forward, policy.backward))

    @jax.custom_batching.sequential_vmap
    def run(x_PD, dy_PD, weight_P, hidden, weights, start_E, size_E):
        def of_expert(e, carry):
            *inner, last = [w[e] for w in weights]

            def of_block(i, carry):
                (dx_PD, dweight_P, sums), first = carry, start_E[e] + i * block
                is_its = i * block + jnp.arange(block) < size_E[e]  # of the last block some are the next expert's
                x_MD, dy_MD, *units = (_read(x, first, block) for x in (x_PD, dy_PD, *hidden))
                weight_M = jnp.where(is_its, _read(weight_P, first, block), 0)
                h_MF, pull = jax.vjp(functools.partial(weigh_units, activation), weight_M, *units)
                dweight_M, *dunits = pull(_dot(dy_MD, last.T).astype(form))
                dunits = [cast_back(d) for d in dunits]
                dx_MD = sum(_dot(d, w.T).astype(form) for d, w in zip(dunits, inner, strict=True))
                outer = [*(_dot(x_MD.T, d) for d in dunits), _dot(cast(h_MF).T, dy_MD)]
                sums = [total + part for total, part in zip(sums, outer, strict=True)]
                return _write(dx_PD, dx_MD, first), _write(dweight_P, dweight_M, first), sums

            dx_PD, dweight_P, dweights = carry
            begin = dx_PD, dweight_P, [jnp.zeros_like(dw[0]) for dw in dweights]
            *of_rows, sums = jax.lax.fori_loop(0, -(-size_E[e] // block), of_block, begin)
            return *of_rows, [dw.at[e].set(total) for dw, total in zip(dweights, sums, strict=True)]

        zeros = lambda shape, form: vary_like(jnp.zeros(shape, form), x_PD, weight_P, *weights)  # noqa: E731
        begin = (
            zeros(x_PD.shape, form),
            zeros(weight_P.shape, weight_P.dtype),
            [zeros(w.shape, jnp.float32) for w in weights],
        )
        return jax.lax.fori_loop(0, size_E.size, of_expert, begin)

    values = [cast(weight_values(w)) for w in weights]
    dx_PD, dweight_P, sums = run(x_PD, cast_back(dy_PD), weight_P, hidden, values, rows.start_E, rows.size_E)
    dweights = [gradient_like(w, s.astype(weight_master(w).dtype)) for w, s in zip(weights, sums, strict=True)]
    return dx_PD, dweight_P, dweights, None


fused_experts.defvjp(_forward, _backward)


def _cast(policy: Policy, form: str, x: jax.Array) -> jax.Array:
    values: Any = cast_operand(x, form, policy).values
    return values


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product of two matrices, summed in fp32."""
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
