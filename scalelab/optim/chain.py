"""Config -> optax chain. Every number in it may be a tracer, so packed trials share the program."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Static
from scalelab.model.transformer import declarations
from scalelab.optim import adam, groups, members
from scalelab.optim.member import Member, Tree
from scalelab.optim.schedules import Hparams


def chain(static: Static, h: Hparams, lr: jax.Array) -> optax.GradientTransformationExtraArgs:
    """Clip, the optimizer's directions, LR multipliers, decoupled decay, LR: updates to be added to the parameters.

    The decay is not multiplied: LR x decay stays the same over widths, as CompleteP (Dey et al. 2025, Table 1) asks.
    A `coupled` optimizer has its decay added to the gradient instead (L2).
    """
    member, o = members.find(static.optim.name), static.optim
    decay = optax.add_decayed_weights(h["weight_decay"], mask=groups.decays(static.model, o))
    return optax.chain(
        _clip(h["clip_norm"]),
        *([decay] if member.coupled else []),
        directions(member, static, h, lr),
        _scale_each(groups.scales(static.model, o, member)),
        *([] if member.coupled else [decay]),
        optax.scale_by_learning_rate(lr),
        *([member.last(h, lr)] if member.last else []),
    )


def directions(member: Member, static: Static, h: Hparams, lr: jax.Array) -> optax.GradientTransformationExtraArgs:
    """The optimizer's own transform; where it takes some parameters only, AdamW beside it for the others."""
    declared, o = declarations(static.model), static.optim
    claimed = {name for name, d in named(declared).items() if member.claims(d)}
    if len(claimed) == len(named(declared)):
        return optax.with_extra_args_support(member.build(declared, o, h, lr))
    own = member.build({name: d for name, d in named(declared).items() if name in claimed}, o, h, lr)
    ratio = h["rest_lr"] / jnp.where(h["peak_lr"] > 0, h["peak_lr"], 1.0)
    rest = optax.chain(adam.transform(h["rest_beta1"], h["rest_beta2"], h["rest_eps"]), optax.scale(ratio))
    return _both(claimed, optax.with_extra_args_support(own), rest)


class Both(NamedTuple):
    """The state of an optimizer and of the AdamW beside it; their trees are flat: {"blocks.mlp.up.w": …}."""

    own: Any
    rest: Any


def _both(
    claimed: set[str], own: optax.GradientTransformationExtraArgs, rest: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    def parts(tree: Tree) -> tuple[dict, dict]:
        flat = named(tree)
        return {n: flat[n] for n in flat if n in claimed}, {n: flat[n] for n in flat if n not in claimed}

    def init(params: Tree) -> Both:
        mine, others = parts(params)
        return Both(own.init(mine), rest.init(others))

    def update(grads: Tree, state: Both, params: Tree = None, **extra: Any) -> tuple[Tree, Both]:
        (mine, others), (my_params, other_params) = parts(grads), parts(params)
        mine, own_state = own.update(mine, state.own, my_params, **extra)
        others, rest_state = rest.update(others, state.rest, other_params)
        together = mine | others
        return jax.tree.unflatten(jax.tree.structure(grads), [together[n] for n in named(grads)]), Both(
            own_state, rest_state
        )

    return optax.GradientTransformationExtraArgs(init, update)


def named(tree: Tree) -> dict[str, Any]:
    """The leaves of a nested dict by their dotted names, in the tree's order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _clip(most: jax.Array) -> optax.GradientTransformation:
    """Scale all gradients by min(1, most / global norm); optax's own divides every element, which costs 2 % of a step."""

    def clip(grads: Any, _: Any) -> Any:
        factor = jnp.minimum(1.0, most / optax.tree.norm(grads))
        return jax.tree.map(lambda g: factor * g, grads)

    return optax.stateless(clip)


def _scale_each(multipliers: Any) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, _: jax.tree.map(lambda u, m: m * u, updates, multipliers))
