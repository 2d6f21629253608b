"""A step's loss and the norm of its gradient, of which no more than one layer's exists at a time.

The forward keeps the input of every block, and the backward computes each block once more, as under
`model.remat=full`. LOMO (Lv et al. 2023, section 3.2) also runs the backward twice: clipping by the global norm, and
the decision whether to take the step at all, need all gradients before the first update.

Shapes: L layers, B batch, S sequence, D d_model.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.hardware.tactics.stack_layout import keep_layout
from scalelab.model import layer_flags, transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import DocumentEnds
from scalelab.model.pieces import Pieces, end_in_loss
from scalelab.model.sums.block_sums import SUMS, Sums, sums_cotangent
from scalelab.model.sums.loss_sums import LossSums, add_block_sums, objective_cotangent
from scalelab.optim.parts import select, sum_squares
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.precision.rounding import upcast


class Kept(NamedTuple):
    """What the forward leaves for the backward passes, and the norm of the gradient of the token mean."""

    tokens: jax.Array
    z_weight: jax.Array
    counted: jax.Array  # predicted tokens, by which the objective is divided
    ends: DocumentEnds | None
    inputs_LBSD: Any = None
    last_BSD: Any = None
    norm: Any = None


class Backward(NamedTuple):
    """What both backwards of a step work with."""

    static: Static
    pieces: Pieces  # that end in the loss sums
    counted: jax.Array


def make_backward(static: Static, kept: Kept) -> Backward:
    """The backward of the step that `kept` stems from; its arrays of the forward are not read."""
    split = documents.split_inputs_targets(kept.tokens, kept.ends)
    end = end_in_loss(static.model, split, kept.z_weight)
    pieces = transformer.make_pieces(static.model, POLICIES[static.precision], split, end)
    return Backward(static, pieces, kept.counted)


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


def leave_gradient(backward: Backward, params: Any, last_BSD: jax.Array) -> tuple[LossSums, Any, jax.Array]:
    """(loss sums, gradient of what stands behind the blocks, gradient of `last_BSD`)."""
    rest = read_rest(backward.static, params, leaving(params))
    sums, pull = jax.vjp(backward.pieces.leave, rest, last_BSD)
    return (sums, *pull(objective_cotangent(sums, 1 / backward.counted)))


def apply_layer(backward: Backward, weights: Any, x_BSD: jax.Array, layer: Any) -> tuple[jax.Array, Sums]:
    """(x_BSD after the layer of this index, whose `weights` are [1, …], the sums that it gives)."""
    flags = layer_flags.select_layers(layer_flags.all_layer_flags(backward.static.model), layer)
    y_BSD, written = backward.pieces.block({"params": jax.tree.map(lambda w: w[0], weights)}, x_BSD, flags)
    return y_BSD, written.get(SUMS, {})


def layer_gradient(
    backward: Backward, weights: Any, x_BSD: jax.Array, layer: Any, dy_BSD: jax.Array
) -> tuple[Any, jax.Array]:
    """(gradient of a layer's `weights` [1, …], gradient of its input `x_BSD`), from that of its output."""
    (_, given), pull = jax.vjp(lambda w, x: apply_layer(backward, w, x, layer), weights, x_BSD)
    grads, dx_BSD = pull((dy_BSD, sums_cotangent(given, 1 / backward.counted)))
    return grads, dx_BSD


def enter_gradient(backward: Backward, params: Any, dx_BSD: jax.Array, tied: Any) -> Any:
    """The gradient of what stands before the blocks; `tied`: that of the head, if it is the embedding, or {}."""
    rest = read_rest(backward.static, params, entering(params))
    grads = jax.vjp(backward.pieces.enter, rest)[1](dx_BSD)[0]
    return grads | {name: jax.tree.map(jnp.add, grads[name], tied[name]) for name in tied}


def measure_gradient(
    static: Static, params: Any, tokens: jax.Array, z_weight: jax.Array, ends: DocumentEnds | None
) -> tuple[LossSums, Kept]:
    """Loss sums of the batch [B, S+1], and what its second backward needs. `params` are as stored."""
    with product_precision(POLICIES[static.precision]):
        counted = jnp.maximum(jnp.sum(documents.prediction_targets(tokens, ends) >= 0), 1)
        kept = Kept(tokens, jnp.asarray(z_weight), counted, ends)
        backward = make_backward(static, kept)

        def run_block(x_BSD: jax.Array, layer: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Sums]]:
            y_BSD, given = apply_layer(backward, read_layer(static, params, layer), x_BSD, layer)
            return y_BSD, (keep_layout(x_BSD), given)

        first_BSD = backward.pieces.enter(read_rest(static, params, entering(params)))
        last_BSD, (inputs_LBSD, given) = jax.lax.scan(run_block, first_BSD, jnp.arange(static.model.n_layers))
        sums, grads, dx_BSD = leave_gradient(backward, params, last_BSD)
        tied = {name: grads.pop(name) for name in entering(params) if name in grads}

        def add_layer(turn: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            layer, (dy_BSD, squares) = static.model.n_layers - 1 - turn, carry
            weights = read_layer(static, params, layer)
            grads, dx_BSD = layer_gradient(backward, weights, keep_layout(inputs_LBSD[layer]), layer, dy_BSD)
            return dx_BSD, squares + sum_squares(grads)

        dx_BSD, squares = jax.lax.fori_loop(0, static.model.n_layers, add_layer, (dx_BSD, sum_squares(grads)))
        squares += sum_squares(enter_gradient(backward, params, dx_BSD, tied))
    kept = kept._replace(inputs_LBSD=inputs_LBSD, last_BSD=last_BSD, norm=jnp.sqrt(squares))
    return add_block_sums(sums, given), kept
