"""Config -> optax chain. Every number in it may be a tracer, so packed trials share the program."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim, Static, traced_names
from scalelab.model.declare import named_leaves
from scalelab.model.parametrization import ParameterScales
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import adam, groups, registry, user_numbers
from scalelab.optim.optimizer import Optimizer, Tree
from scalelab.optim.schedules import Hparams


def build_optimizer_chain(static: Static, h: Hparams, lr: jax.Array) -> optax.GradientTransformationExtraArgs:
    """Clip, the optimizer's directions, LR multipliers, decoupled decay, LR: updates to be added to the parameters.

    A `coupled` optimizer has its decay added to the gradient instead (L2). `parametrization.parameter_scales` says what LR, decay and
    eps of a parameter are multiplied by.
    """
    member, o = registry.find_optimizer(static.optim.name), static.optim
    numbers = user_numbers.readable_hparams(o, h)
    by = groups.optimizer_scales(static.model, o, member)
    decay = _add_decay(
        weight_decays(member, static, h), by, groups.decay_mask(static.model, o), multiplied=not member.coupled
    )
    return optax.chain(
        clip_global_norm(h["clip_norm"]),
        *([decay] if member.coupled else []),
        _with_scaled_eps(by, build_directions(member, parameter_declarations(static.model), o, numbers, lr)),
        _scale_each(jax.tree.map(lambda s: s.lr, by)),
        *([] if member.coupled else [decay]),
        optax.scale_by_learning_rate(lr),
        *([member.last(numbers, lr)] if member.last else []),
    )


def check_numbers_set(static: Static) -> None:
    """BadInput where a user's own optimizer reads a number that its config doesn't set; from shapes, so nothing is computed."""
    if ":" not in static.optim.name:
        return
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    h = dict.fromkeys(traced_names(static.optim), scalar)
    params = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), parameter_declarations(static.model))
    estimate = (params, jax.ShapeDtypeStruct((), bool))
    extra = {"curvature": estimate} if registry.find_optimizer(static.optim.name).curvature else {}

    def update(h: Hparams, lr: jax.Array, params: Tree, extra: dict[str, Any]) -> Any:
        transform = build_optimizer_chain(static, h, lr)
        return transform.update(params, transform.init(params), params, **extra)

    jax.eval_shape(update, h, scalar, params, extra)


def weight_decays(member: Optimizer, static: Static, h: Hparams) -> Tree:
    """A parameter decays by its own optimizer's LR: the rest's by `rest_lr`, unless decay is to be independent of LRs."""
    rest = 1.0 if static.wd_shape == "independent" else rest_ratio(h)
    return jax.tree.map(
        lambda d: h["weight_decay"] if member.claims(d) else rest * h["weight_decay"],
        parameter_declarations(static.model),
    )


def rest_ratio(h: Hparams) -> jax.Array:
    """The LR of the AdamW beside an optimizer, over that optimizer's."""
    return h["rest_lr"] / jnp.where(h["peak_lr"] > 0, h["peak_lr"], 1.0)


def _add_decay(weight_decays: Tree, by: Tree, decays: Tree, multiplied: bool) -> optax.GradientTransformation:
    """Adds decay x parameter where it decays; `multiplied`: by its LR multiplier too, since it comes after that is applied."""

    def add(updates: Tree, _: Any, params: Tree) -> Tree:
        def one(u: jax.Array, p: jax.Array, s: ParameterScales, decays: bool, weight_decay: jax.Array) -> jax.Array:
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


def build_directions(
    member: Optimizer, declared: Tree, o: Optim, h: Hparams, lr: jax.Array
) -> optax.GradientTransformationExtraArgs:
    """The optimizer's own transform; where it takes some parameters only, AdamW beside it for the others."""
    claimed = {name for name, d in named_leaves(declared).items() if member.claims(d)}
    if len(claimed) == len(named_leaves(declared)):
        return optax.with_extra_args_support(member.build(declared, o, h, lr))
    own = member.build({name: d for name, d in named_leaves(declared).items() if name in claimed}, o, h, lr)
    rest = optax.chain(adam.scale_by_adam(h["rest_beta1"], h["rest_beta2"], h["rest_eps"]), optax.scale(rest_ratio(h)))
    return _pair_transforms(claimed, optax.with_extra_args_support(own), rest)


class PairedState(NamedTuple):
    """The state of an optimizer and of the AdamW beside it; their trees are flat: {"blocks.mlp.up.w": …}."""

    own: Any
    rest: Any


def _pair_transforms(
    claimed: set[str], own: optax.GradientTransformationExtraArgs, rest: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    def parts(tree: Tree) -> tuple[dict, dict]:
        flat = named_leaves(tree)
        return {n: flat[n] for n in flat if n in claimed}, {n: flat[n] for n in flat if n not in claimed}

    def init(params: Tree) -> PairedState:
        mine, others = parts(params)
        return PairedState(own.init(mine), rest.init(others))

    def update(grads: Tree, state: PairedState, params: Tree = None, **extra: Any) -> tuple[Tree, PairedState]:
        (mine, others), (my_params, other_params) = parts(grads), parts(params)
        mine, own_state = own.update(mine, state.own, my_params, **extra)
        others, rest_state = rest.update(others, state.rest, other_params)
        together = mine | others
        return jax.tree.unflatten(jax.tree.structure(grads), [together[n] for n in named_leaves(grads)]), PairedState(
            own_state, rest_state
        )

    return optax.GradientTransformationExtraArgs(init, update)


def clip_global_norm(most: jax.Array) -> optax.GradientTransformation:
    """Scale all gradients by min(1, most / global norm); optax's own divides every element, which costs 2 % of a step."""

    def scaled(grads: Any, _: Any) -> Any:
        factor = jnp.minimum(1.0, most / optax.tree.norm(grads))
        return jax.tree.map(lambda g: factor * g, grads)

    return optax.stateless(scaled)


def _scale_each(multipliers: Any) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, _: jax.tree.map(lambda u, m: m * u, updates, multipliers))
