"""A step's loss and the norm of its gradient, of which no more than one layer's exists at a time.

The forward keeps the input of every block, and the backward computes each block once more, as under
`model.remat=full`. LOMO (Lv et al. 2023, section 3.2) also runs the backward twice: clipping by the global norm, and
the decision whether to take the step at all, need all gradients before the first update.

Shapes: L layers, B batch, S sequence, D d_model.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.hardware.tactics.stack_layout import keep_layout
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import DocumentEnds
from scalelab.model.declare import with_variables
from scalelab.model.pieces import Pieces, end_in_loss
from scalelab.model.stacks import Stack, all_layer_flags, join_stacks, select_layers, stacks
from scalelab.model.sums.block_sums import SUMS, Sums, sums_cotangent
from scalelab.model.sums.loss_sums import LossSums, add_block_sums, objective_cotangent
from scalelab.optim.parts import select, sum_squares
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.precision.rounding import upcast

Carry = TypeVar("Carry")


class Kept(NamedTuple):
    """What the forward leaves for the backward passes, and the norm of the gradient of the token mean."""

    tokens: jax.Array
    z_weight: jax.Array
    counted: jax.Array  # predicted tokens, by which the objective is divided
    ends: DocumentEnds | None
    variables: Any = None  # the model's, which are not parameters (`declare.Variable`); {}: there is none
    inputs: Any = None  # {stack: of its blocks, [its layers, B, S, D]}
    last_BSD: Any = None
    norm: Any = None


class Backward(NamedTuple):
    """What both backwards of a step work with."""

    static: Static
    pieces: Pieces  # that end in the loss sums
    counted: jax.Array
    variables: Any


def make_backward(static: Static, kept: Kept) -> Backward:
    """The backward of the step that `kept` stems from; its arrays of the forward are not read."""
    split = documents.split_inputs_targets(kept.tokens, kept.ends)
    end = end_in_loss(static.model, split, kept.z_weight)
    pieces = transformer.make_pieces(static.model, POLICIES[static.precision], split, end)
    return Backward(static, pieces, kept.counted, kept.variables)


class Layer(NamedTuple):
    """A layer: its stack, and its index there (traced)."""

    stack: Stack
    index: Any

    @property
    def number(self) -> Any:
        """Its index in the model."""
        return self.stack.first + self.index


def read_layer(static: Static, params: Any, layer: Layer) -> Any:
    """The weights [1, …] of a layer in fp32; no others are widened."""
    read = lambda w: keep_layout(jax.lax.dynamic_slice_in_dim(w, layer.index, 1))  # noqa: E731
    return upcast(jax.tree.map(read, params[layer.stack.name]), POLICIES[static.precision].parameters)


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


def apply_layer(backward: Backward, weights: Any, x_BSD: jax.Array, layer: Layer) -> tuple[jax.Array, Sums]:
    """(x_BSD after the layer, whose `weights` are [1, …], the sums that it gives)."""
    flags = select_layers(all_layer_flags(backward.static.model), layer.number)
    read = jax.tree.map(lambda v: v[layer.index], (backward.variables or {}).get(layer.stack.name, {}))
    params = with_variables(jax.tree.map(lambda w: w[0], weights), read)
    y_BSD, written = backward.pieces.block({"params": params}, x_BSD, flags, layer.stack.block)
    return y_BSD, written.get(SUMS, {})


def layer_gradient(
    backward: Backward, weights: Any, x_BSD: jax.Array, layer: Layer, dy_BSD: jax.Array
) -> tuple[Any, jax.Array]:
    """(gradient of a layer's `weights` [1, …], gradient of its input `x_BSD`), from that of its output."""
    (_, given), pull = jax.vjp(lambda w, x: apply_layer(backward, w, x, layer), weights, x_BSD)
    grads, dx_BSD = pull((dy_BSD, sums_cotangent(given, 1 / backward.counted)))
    return grads, dx_BSD


def loop_back(static: Static, do_layer: Callable[[Layer, Carry], Carry], carry: Carry) -> Carry:
    """`carry` after `do_layer` of every layer, from the last one down: a loop a stack."""
    for stack in reversed(stacks(static.model)):
        carry = jax.lax.fori_loop(
            0, stack.depth, lambda turn, carry, s=stack: do_layer(Layer(s, s.depth - 1 - turn), carry), carry
        )
    return carry


def enter_gradient(backward: Backward, params: Any, dx_BSD: jax.Array, tied: Any) -> Any:
    """The gradient of what stands before the blocks; `tied`: that of the head, if it is the embedding, or {}."""
    rest = read_rest(backward.static, params, entering(params))
    grads = jax.vjp(backward.pieces.enter, rest)[1](dx_BSD)[0]
    return grads | {name: jax.tree.map(jnp.add, grads[name], tied[name]) for name in tied}


def measure_gradient(
    static: Static,
    params: Any,
    tokens: jax.Array,
    z_weight: jax.Array,
    ends: DocumentEnds | None,
    variables: Any = None,
) -> tuple[LossSums, Kept]:
    """Loss sums of the batch [B, S+1], and what its second backward needs. `params` are as stored.

    `variables`: the model's, of all layers, beside the parameters.
    """
    with product_precision(POLICIES[static.precision]):
        counted = jnp.maximum(jnp.sum(documents.prediction_targets(tokens, ends) >= 0), 1)
        kept = Kept(tokens, jnp.asarray(z_weight), counted, ends, variables)
        backward = make_backward(static, kept)

        def run_block(stack: Stack, x_BSD: jax.Array, index: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Sums]]:
            layer = Layer(stack, index)
            y_BSD, given = apply_layer(backward, read_layer(static, params, layer), x_BSD, layer)
            return y_BSD, (keep_layout(x_BSD), given)

        last_BSD, inputs, given = backward.pieces.enter(read_rest(static, params, entering(params))), {}, {}
        for stack in stacks(static.model):
            run = functools.partial(run_block, stack)
            last_BSD, (inputs[stack.name], given[stack.name]) = jax.lax.scan(run, last_BSD, jnp.arange(stack.depth))
        sums, grads, dx_BSD = leave_gradient(backward, params, last_BSD)
        tied = {name: grads.pop(name) for name in entering(params) if name in grads}

        def add_layer(layer: Layer, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            (dy_BSD, squares), x_BSD = carry, keep_layout(inputs[layer.stack.name][layer.index])
            weights = read_layer(static, params, layer)
            grads, dx_BSD = layer_gradient(backward, weights, x_BSD, layer, dy_BSD)
            return dx_BSD, squares + sum_squares(grads)

        dx_BSD, squares = loop_back(static, add_layer, (dx_BSD, sum_squares(grads)))
        squares += sum_squares(enter_gradient(backward, params, dx_BSD, tied))
    kept = kept._replace(inputs=inputs, last_BSD=last_BSD, norm=jnp.sqrt(squares))
    return add_block_sums(sums, join_stacks(static.model, given)), kept
