"""Config -> optax chain. Every number in it may be a tracer, so packed trials share the program."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim, Static, traced_names
from scalelab.model.declare import named
from scalelab.model.parametrization import Scales
from scalelab.model.transformer import declarations
from scalelab.optim import adam, groups, registry, user_numbers
from scalelab.optim.optimizer import Member, Tree
from scalelab.optim.schedules import Hparams


def chain(static: Static, h: Hparams, lr: jax.Array) -> optax.GradientTransformationExtraArgs:
    """Clip, the optimizer's directions, LR multipliers, decoupled decay, LR: updates to be added to the parameters.

    A `coupled` optimizer has its decay added to the gradient instead (L2). `parametrization.scales` says what LR, decay and
    eps of a parameter are multiplied by.
    """
    member, o = registry.find(static.optim.name), static.optim
    numbers = user_numbers.given(o, h)
    by = groups.scales(static.model, o, member)
    decay = _decay(weight_decays(member, static, h), by, groups.decays(static.model, o), multiplied=not member.coupled)
    return optax.chain(
        clip(h["clip_norm"]),
        *([decay] if member.coupled else []),
        _with_scaled_eps(by, directions(member, declarations(static.model), o, numbers, lr)),
        _scale_each(jax.tree.map(lambda s: s.lr, by)),
        *([] if member.coupled else [decay]),
        optax.scale_by_learning_rate(lr),
        *([member.last(numbers, lr)] if member.last else []),
    )


def refuse_unset(static: Static) -> None:
    """BadInput where a user's own optimizer reads a number that its config doesn't set; from shapes, so nothing is computed."""
    if ":" not in static.optim.name:
        return
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    h = dict.fromkeys(traced_names(static.optim), scalar)
    params = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), declarations(static.model))
    estimate = (params, jax.ShapeDtypeStruct((), bool))
    extra = {"curvature": estimate} if registry.find(static.optim.name).curvature else {}

    def update(h: Hparams, lr: jax.Array, params: Tree, extra: dict[str, Any]) -> Any:
        transform = chain(static, h, lr)
        return transform.update(params, transform.init(params), params, **extra)

    jax.eval_shape(update, h, scalar, params, extra)


def weight_decays(member: Member, static: Static, h: Hparams) -> Tree:
    """A parameter decays by its own optimizer's LR: the rest's by `rest_lr`, unless decay is to be independent of LRs."""
    rest = 1.0 if static.wd_shape == "independent" else rest_ratio(h)
    return jax.tree.map(
        lambda d: h["weight_decay"] if member.claims(d) else rest * h["weight_decay"], declarations(static.model)
    )


def rest_ratio(h: Hparams) -> jax.Array:
    """The LR of the AdamW beside an optimizer, over that optimizer's."""
    return h["rest_lr"] / jnp.where(h["peak_lr"] > 0, h["peak_lr"], 1.0)


def _decay(weight_decays: Tree, by: Tree, decays: Tree, multiplied: bool) -> optax.GradientTransformation:
    """Adds decay x parameter where it decays; `multiplied`: by its LR multiplier too, since it comes after that is applied."""

    def add(updates: Tree, _: Any, params: Tree) -> Tree:
        def one(u: jax.Array, p: jax.Array, s: Scales, decays: bool, weight_decay: jax.Array) -> jax.Array:
            factor = s.decay * (s.lr if multiplied else 1.0)
            return u + weight_decay * (p if factor == 1 else factor * p) if decays else u

        return jax.tree.map(one, updates, params, by, decays, weight_decays)

    return optax.GradientTransformation(
        lambda _: optax.EmptyState(), lambda u, state, p=None: (add(u, state, p), state)
    )


def _with_scaled_eps(by: Tree, inner: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """An update that doesn't depend on the gradient's size takes a smaller eps where it is given a larger gradient."""
    if all(s.eps == 1 for s in jax.tree.leaves(by)):
        return inner
    larger = _scale_each(jax.tree.map(lambda s: 1 / s.eps, by))

    def update(grads: Tree, state: Any, params: Tree = None, **extra: Any) -> tuple[Tree, Any]:
        """What is derived from gradients is larger as they are."""
        if "curvature" in extra:
            tree, fresh = extra["curvature"]
            extra["curvature"] = larger.update(tree, optax.EmptyState())[0], fresh
        return inner.update(larger.update(grads, optax.EmptyState())[0], state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def directions(
    member: Member, declared: Tree, o: Optim, h: Hparams, lr: jax.Array
) -> optax.GradientTransformationExtraArgs:
    """The optimizer's own transform; where it takes some parameters only, AdamW beside it for the others."""
    claimed = {name for name, d in named(declared).items() if member.claims(d)}
    if len(claimed) == len(named(declared)):
        return optax.with_extra_args_support(member.build(declared, o, h, lr))
    own = member.build({name: d for name, d in named(declared).items() if name in claimed}, o, h, lr)
    rest = optax.chain(adam.transform(h["rest_beta1"], h["rest_beta2"], h["rest_eps"]), optax.scale(rest_ratio(h)))
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


def clip(most: jax.Array) -> optax.GradientTransformation:
    """Scale all gradients by min(1, most / global norm); optax's own divides every element, which costs 2 % of a step."""

    def scaled(grads: Any, _: Any) -> Any:
        factor = jnp.minimum(1.0, most / optax.tree.norm(grads))
        return jax.tree.map(lambda g: factor * g, grads)

    return optax.stateless(scaled)


def _scale_each(multipliers: Any) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, _: jax.tree.map(lambda u, m: m * u, updates, multipliers))
