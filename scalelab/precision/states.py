"""What a precision policy keeps between steps, one class a kind: what it does before a step, and after one.

    LossScaling      a factor of the loss (fp16): changed by every step, unless a finite one is skipped
    DelayedScaling   the amax of past steps' operands (fp8_delayed): changed by steps that are taken
    LostBits         what rounding the weights lost (bf16_kahan): changed by the update itself
    PolicyState      nothing (all others)

The step calls each the same way, so it asks no policy which one it is.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.precision import delayed, loss_scale, rounding
from scalelab.precision.policy import Policy

Tree = Any  # a nested dict of arrays, or another pytree
LOSS_SCALE = "loss_scale"  # a metric of policies that have one: this step's loss scale


@dataclasses.dataclass(frozen=True)
class PolicyState:
    """A policy that keeps nothing: its state is ()."""

    policy: Policy

    def init(self, params: Tree, blocks: Mapping[str, Any]) -> Tree:
        """The state of a new run on `params` (fp32), whose blocks' parameters are declared in `blocks`."""
        del params, blocks
        return ()

    @property
    def like_parameters(self) -> bool:
        """Whether the state is a tree like the parameters, and split over devices as they are; else it is whole."""
        return False

    def loss_factor(self, state: Tree) -> jax.Array | None:
        """The factor of the loss whose gradient is taken; None: there is none."""
        del state
        return None

    def operand_scales(self, state: Tree) -> Tree:
        """The scales of the operands of the blocks' products; () where they are not known before the step."""
        del state
        return ()

    def read_params(self, params: Tree, state: Tree) -> Tree:
        """The parameters in fp32, as an update moves them, from those stored."""
        del state
        return rounding.upcast(params, self.policy.parameters)

    def store_params(self, params: Tree) -> tuple[Tree, Tree]:
        """(fp32 parameters as stored, to nearest; what the state keeps of them, or ())."""
        return rounding.cast_for_storage(params, self.policy.parameters), ()

    def kept_by_update(self, state: Tree) -> Tree:
        """The part of the state that an update changes: what `store_params` keeps, or ()."""
        del state
        return ()

    def next(self, state: Tree, kept: Tree, amax: Tree, finite: jax.Array, accepted: jax.Array) -> Tree:
        """The state after a step: `kept` by its update, of operands with these `amax`."""
        del state, amax, finite, accepted
        return kept

    def metrics(self, state: Tree) -> dict[str, jax.Array]:
        """The metrics of a step that began with this state."""
        del state
        return {}


class LossScaling(PolicyState):
    """Dynamic loss scaling; the state is a `LossScale`."""

    def init(self, params: Tree, blocks: Mapping[str, Any]) -> loss_scale.LossScale:
        del params, blocks
        return loss_scale.init_loss_scale()

    def loss_factor(self, state: loss_scale.LossScale) -> jax.Array:
        return state.scale

    def next(self, state: loss_scale.LossScale, kept: Tree, amax: Tree, finite: jax.Array, accepted: jax.Array) -> Tree:
        del kept, amax
        new = loss_scale.update_loss_scale(state, finite)
        return jax.tree.map(lambda old, x: jnp.where(finite & ~accepted, old, x), state, new)

    def metrics(self, state: loss_scale.LossScale) -> dict[str, jax.Array]:
        return {LOSS_SCALE: state.scale}


class DelayedScaling(PolicyState):
    """Delayed scaling of fp8; the state is a tree of histories."""

    def init(self, params: Tree, blocks: Mapping[str, Any]) -> dict[str, Any]:
        del params
        return delayed.init_amax_history(blocks)

    def operand_scales(self, state: Tree) -> Tree:
        return delayed.delayed_scales(state, self.policy)

    def next(self, state: Tree, kept: Tree, amax: Tree, finite: jax.Array, accepted: jax.Array) -> Tree:
        del kept, finite
        return delayed.update_amax_history(state, amax, accepted)


class LostBits(PolicyState):
    """Kahan's sum of weights in bf16; the state is a tree like the parameters."""

    def init(self, params: Tree, blocks: Mapping[str, Any]) -> Tree:
        del blocks
        return rounding.split_tree(params)[1]

    @property
    def like_parameters(self) -> bool:
        return True

    def read_params(self, params: Tree, state: Tree) -> Tree:
        return rounding.join_trees(params, state)

    def store_params(self, params: Tree) -> tuple[Tree, Tree]:
        return rounding.split_tree(params)

    def kept_by_update(self, state: Tree) -> Tree:
        return state


def policy_state(policy: Policy) -> PolicyState:
    """What this policy keeps between steps."""
    if policy.scaled_loss:
        return LossScaling(policy)
    if policy.scaling == "delayed":
        return DelayedScaling(policy)
    return LostBits(policy) if policy.rounding == "kahan" else PolicyState(policy)
