"""The second backward of a step: each layer is updated as soon as its gradient is known, and the gradient is gone.

A block's weights are read by its own forward and backward alone, and by these before they are changed, so every
gradient is that of the weights before the step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name

from scalelab.config import Static
from scalelab.hardware.tactics.stack_layout import keep_layout
from scalelab.model.stacks import stacks
from scalelab.optim import parts
from scalelab.optim.parts import sum_squares
from scalelab.optim.schedules import Hparams
from scalelab.precision import rounding
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.precision.rounding import upcast
from scalelab.train.step.update.per_layer import backward
from scalelab.train.step.update.per_layer.backward import Kept, Layer, read_layer, read_rest


class Part(NamedTuple):
    """Parameters that are moved together: a layer, or what stands before or behind the blocks."""

    chain: optax.GradientTransformationExtraArgs
    old: Any  # the parameters in fp32
    layer: Any = None  # its index in the stack; None: they are not stacked
    last: bool = False  # of the step


class Updated(NamedTuple):
    """Parameters and optimizer state as stored; sums of squares of the moves and of the moved parameters."""

    params: Any
    opt_state: Any
    move_squares: jax.Array
    param_squares: jax.Array


def update_layers(static: Static, kept: Kept, now: Hparams, step: jax.Array, params: Any, opt_state: Any) -> Updated:
    """Update parameters and optimizer state (as stored) by the optimizer's chain, part by part, from the head down.

    `step`: its number, by which weights are rounded where the policy asks for it.
    """
    factor = jnp.minimum(1.0, now.optim.clip_norm / kept.norm)
    again = backward.make_backward(static, kept)
    key = rounding.step_key(now.train.seed, step)
    single = parts.one_layer(static)
    chains = {
        stack.name: parts.part_chain(single, now, now.step.lr, (stack.name,), factor) for stack in stacks(static.model)
    }

    def update_rest(state: Updated, grads: Any, last: bool) -> Updated:
        chain = parts.part_chain(static, now, now.step.lr, tuple(grads), factor)
        old = read_rest(static, state.params, tuple(grads))
        return _move(static, key, Part(chain, old, last=last), grads, state)

    def update_layer(layer: Layer, carry: tuple[jax.Array, Updated]) -> tuple[jax.Array, Updated]:
        (dy_BSD, state), name = carry, layer.stack.name
        old, x_BSD = read_layer(static, state.params, layer), keep_layout(kept.inputs[name][layer.index])
        grads, dx_BSD = backward.layer_gradient(again, old, x_BSD, layer, dy_BSD)
        part = Part(chains[name], {name: old}, layer.index)
        return dx_BSD, _move(static, key, part, {name: grads}, state)

    with product_precision(POLICIES[static.precision]):
        zero = jnp.zeros(())
        state = Updated(params, opt_state, zero, zero)
        _, grads, dx_BSD = backward.leave_gradient(again, params, kept.last_BSD)
        tied = {name: grads.pop(name) for name in backward.entering(params) if name in grads}
        state = update_rest(state, grads, last=False)
        dx_BSD, state = backward.loop_back(static, update_layer, (dx_BSD, state))
        return update_rest(state, backward.enter_gradient(again, params, dx_BSD, tied), last=True)


def _move(static: Static, key: jax.Array, part: Part, grads: Any, state: Updated) -> Updated:
    """`state` with the parameters of a part moved by its chain."""
    opt_state, layer = state.opt_state, part.layer
    part_state = parts.read_part(opt_state, jax.eval_shape(part.chain.init, part.old), layer)
    part_state = upcast(part_state, POLICIES[static.precision].moments)
    moves, part_state = part.chain.update(checkpoint_name(grads, "gradients"), part_state, part.old)
    new = optax.apply_updates(part.old, moves)
    stored = rounding.round_tree(new, key, layer) if POLICIES[static.precision].rounding == "stochastic" else new
    return Updated(
        state.params | {name: _write(state.params[name], stored[name], layer) for name in stored},
        parts.write_part(opt_state, part_state, layer, part.last),
        state.move_squares + sum_squares(moves),
        state.param_squares + sum_squares(new),
    )


def _write(stored: Any, new: Any, layer: Any) -> Any:
    """The stored arrays with the new values in their formats; `layer`: in which of the stacked ones, None: whole."""
    if layer is None:
        return jax.tree.map(lambda w, x: x.astype(w.dtype), stored, new)
    return jax.tree.map(lambda w, x: jax.lax.dynamic_update_slice_in_dim(w, x.astype(w.dtype), layer, 0), stored, new)
