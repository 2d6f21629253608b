"""A step's loss and the norm of its gradient, of which no more than one layer's exists at a time.

The forward keeps the input of every block, and the backward computes each block once more, as under
`model.remat=full`. LOMO (Lv et al. 2023, section 3.2) also runs the backward twice: clipping by the global norm, and
the decision whether to take the step at all, need all gradients before the first update.

Shapes: L layers, B batch, S sequence, D d_model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.hardware.tactics.stack_layout import keep_layout
from scalelab.model import layer_flags, transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import DocumentEnds
from scalelab.model.loss import LossSums
from scalelab.optim.parts import select, sum_squares
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.precision.rounding import upcast


class Pieces(NamedTuple):
    """A step's objective in three functions, of parameters in fp32; `leave` returns (objective, loss sums)."""

    enter: Callable[[Any], jax.Array]  # embedding (and positions) -> x_BSD
    block: Callable[[Any, jax.Array, Any], jax.Array]  # weights, x_BSD, index of the layer -> x_BSD
    leave: Callable[[Any, jax.Array], tuple[jax.Array, LossSums]]


class Kept(NamedTuple):
    """What the forward leaves for the backward passes, and the norm of the gradient of the token mean."""

    tokens: jax.Array
    z_weight: jax.Array
    counted: jax.Array  # predicted tokens, by which the objective is divided
    ends: DocumentEnds | None
    inputs_LBSD: jax.Array
    last_BSD: jax.Array
    norm: jax.Array


def make_pieces(static: Static, tokens: jax.Array, z_weight: Any, counted: jax.Array, ends: Any) -> Pieces:
    """The pieces of the step on `tokens` [B, S+1]."""
    shape, policy, flags = static.model, POLICIES[static.precision], layer_flags.all_layer_flags(static.model)
    inputs_BS, targets_BS, packed = documents.split_inputs_targets(tokens, ends)

    def leave(params: Any, x_BSD: jax.Array) -> tuple[jax.Array, LossSums]:
        sums = transformer.head_loss(shape, params, x_BSD, targets_BS, z_weight, policy)
        return sums.objective / counted, sums

    return Pieces(
        enter=lambda params: transformer.embed_tokens(shape, params, inputs_BS, policy, packed),
        block=lambda params, x_BSD, layer: transformer.apply_block(
            shape, params, x_BSD, policy, layer_flags.select_layers(flags, layer), packed
        ),
        leave=leave,
    )


def read_layer(static: Static, params: Any, layer: Any) -> Any:
    """The weights [1, …] of a layer in fp32; no others are widened."""
    read = lambda w: keep_layout(jax.lax.dynamic_slice_in_dim(w, layer, 1))  # noqa: E731
    return upcast(jax.tree.map(read, params["blocks"]), POLICIES[static.precision].parameters)


def read_rest(static: Static, params: Any, names: tuple[str, ...]) -> Any:
    """These groups of parameters in fp32."""
    return upcast(select(names, params), POLICIES[static.precision].parameters)


def entering(params: Any) -> tuple[str, ...]:
    """Groups of parameters before the blocks."""
    return tuple(name for name in params if name in ("embed", "positions"))


def leaving(params: Any) -> tuple[str, ...]:
    """Groups of parameters behind the blocks; a tied head is the embedding."""
    return ("final_norm", "head" if "head" in params else "embed")


def leave_gradient(static: Static, pieces: Pieces, params: Any, last_BSD: jax.Array) -> tuple[LossSums, Any, jax.Array]:
    """(loss sums, gradient of what stands behind the blocks, gradient of `last_BSD`)."""
    rest = read_rest(static, params, leaving(params))
    objective, pull, sums = jax.vjp(pieces.leave, rest, last_BSD, has_aux=True)
    return (sums, *pull(jnp.ones_like(objective)))


def layer_gradient(pieces: Pieces, weights: Any, x_BSD: jax.Array, layer: Any, dy_BSD: jax.Array) -> tuple[Any, Any]:
    """(gradient of a layer's `weights` [1, …], gradient of its input `x_BSD`)."""
    single = jax.tree.map(lambda w: w[0], weights)
    grads, dx_BSD = jax.vjp(lambda w, x: pieces.block(w, x, layer), single, x_BSD)[1](dy_BSD)
    return jax.tree.map(lambda g: g[None], grads), dx_BSD


def enter_gradient(static: Static, pieces: Pieces, params: Any, dx_BSD: jax.Array, tied: Any) -> Any:
    """The gradient of what stands before the blocks; `tied`: that of the head, if it is the embedding, or {}."""
    grads = jax.vjp(pieces.enter, read_rest(static, params, entering(params)))[1](dx_BSD)[0]
    return grads | {name: jax.tree.map(jnp.add, grads[name], tied[name]) for name in tied}


def measure_gradient(
    static: Static, params: Any, tokens: jax.Array, z_weight: jax.Array, ends: DocumentEnds | None
) -> tuple[LossSums, Kept]:
    """Loss sums of the batch [B, S+1], and what its second backward needs. `params` are as stored."""
    with product_precision(POLICIES[static.precision]):
        counted = jnp.maximum(jnp.sum(documents.prediction_targets(tokens, ends) >= 0), 1)
        pieces = make_pieces(static, tokens, z_weight, counted, ends)

        def run_block(x_BSD: jax.Array, layer: jax.Array) -> tuple[jax.Array, jax.Array]:
            weights = jax.tree.map(lambda w: w[0], read_layer(static, params, layer))
            return pieces.block(weights, x_BSD, layer), keep_layout(x_BSD)

        first_BSD = pieces.enter(read_rest(static, params, entering(params)))
        last_BSD, inputs_LBSD = jax.lax.scan(run_block, first_BSD, jnp.arange(static.model.n_layers))
        sums, grads, dx_BSD = leave_gradient(static, pieces, params, last_BSD)
        tied = {name: grads.pop(name) for name in entering(params) if name in grads}

        def add_layer(turn: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            layer, (dy_BSD, squares) = static.model.n_layers - 1 - turn, carry
            weights = read_layer(static, params, layer)
            grads, dx_BSD = layer_gradient(pieces, weights, keep_layout(inputs_LBSD[layer]), layer, dy_BSD)
            return dx_BSD, squares + sum_squares(grads)

        dx_BSD, squares = jax.lax.fori_loop(0, static.model.n_layers, add_layer, (dx_BSD, sum_squares(grads)))
        squares += sum_squares(enter_gradient(static, pieces, params, dx_BSD, tied))
    return sums, Kept(tokens, jnp.asarray(z_weight), counted, ends, inputs_LBSD, last_BSD, jnp.sqrt(squares))
