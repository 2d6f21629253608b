"""Config -> optax chain. Every number may be a tracer, so packed trials share one program."""

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim, Static, group_hparams, traced_names
from scalelab.model.declare import named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import adam, clip, groups, registry, user_numbers
from scalelab.optim.optimizer import Optimizer, SecondMoment, Tree
from scalelab.optim.parametrization import ParameterScales
from scalelab.optim.schedules import Hparams


def build_optimizer_chain(
    static: Static,
    h: Hparams,
    lr: jax.Array,
    names: Collection[str] = (),
    clipped: optax.GradientTransformation | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Chain clipping, the optimizer's directions, LR multipliers, decoupled decay and LR; updates are to be added.

    A `coupled` optimizer's decay is added to the gradient instead (L2). `parametrization.parameter_scales` gives each
    parameter's factors on LR, decay and eps. `names`: the groups of parameters that it is for (default: all);
    `clipped`: stands in place of the clip.
    """
    optimizer, o = registry.find_optimizer(static.optim.name), static.optim
    readable, declared = user_numbers.readable_hparams(o, h), parameter_declarations(static.model)
    paired = not all(map(optimizer.claims, jax.tree.leaves(declared)))
    scales, mask = groups.optimizer_scales(static.model, o, optimizer), groups.decay_mask(static.model, o)
    trees = declared, scales, mask, weight_decays(optimizer, static, h)
    declared, scales, mask, decays = ({n: tree[n] for n in tree if not names or n in names} for tree in trees)
    decay = _add_decay(decays, scales, mask, times_lr=not optimizer.coupled)
    directions = build_directions(optimizer, declared, o, readable, lr, paired)
    if o.clip == "spam":
        directions = clip.clip_spikes(directions, functools.partial(_second_moment_tree, static, h, optimizer))
    return optax.chain(
        clipped or clip.CLIPPERS[o.clip](h.optim.clip_norm, declared),
        *([decay] if optimizer.coupled else []),
        _with_scaled_eps(scales, directions),
        _scale_each(jax.tree.map(lambda s: s.lr, scales)),
        *([] if optimizer.coupled else [decay]),
        optax.scale_by_learning_rate(lr),
        *([optimizer.last(readable, lr)] if optimizer.last else []),
    )


def check_optimizer_options(static: Static) -> None:
    """Raise BadInput where a user's own optimizer reads a number that its config does not set, or the clip a moment
    that the optimizer does not keep; shapes only."""
    clip.refuse_unsupported(static.optim.name, static.optim.clip, registry.find_optimizer(static.optim.name))
    if ":" not in static.optim.name:
        return
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    h = group_hparams(dict.fromkeys(traced_names(static.optim), scalar))
    params = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), parameter_declarations(static.model))
    estimate = (params, jax.ShapeDtypeStruct((), bool))
    extra = {"curvature": estimate} if registry.find_optimizer(static.optim.name).curvature else {}

    def update(h: Hparams, lr: jax.Array, params: Tree, extra: dict[str, Any]) -> Any:
        transform = build_optimizer_chain(static, h, lr)
        return transform.update(params, transform.init(params), params, **extra)

    jax.eval_shape(update, h, scalar, params, extra)


def weight_decays(optimizer: Optimizer, static: Static, h: Hparams) -> Tree:
    """A tree of weight decays: AdamW's rest decays with `rest_lr`, unless decay is independent of the LR."""
    rest = 1.0 if static.wd_shape == "independent" else rest_ratio(h)
    return jax.tree.map(
        lambda d: h.optim.weight_decay if optimizer.claims(d) else rest * h.optim.weight_decay,
        parameter_declarations(static.model),
    )


def rest_ratio(h: Hparams) -> jax.Array:
    """LR of the AdamW for the rest, over the optimizer's LR."""
    return h.optim.rest_lr / jnp.where(h.optim.peak_lr > 0, h.optim.peak_lr, 1.0)


def _add_decay(weight_decays: Tree, scales: Tree, mask: Tree, times_lr: bool) -> optax.GradientTransformation:
    """Add decay x parameter under the mask; `times_lr`: times the LR multiplier, which was applied before this."""

    def add(updates: Tree, _: Any, params: Tree) -> Tree:
        def add_leaf(u: jax.Array, p: jax.Array, s: ParameterScales, decays: bool, decay: jax.Array) -> jax.Array:
            factor = s.decay * (s.lr if times_lr else 1.0)
            return u + decay * (p if factor == 1 else factor * p) if decays else u

        return jax.tree.map(add_leaf, updates, params, scales, mask, weight_decays)

    return optax.GradientTransformation(
        lambda _: optax.EmptyState(), lambda u, state, p=None: (add(u, state, p), state)
    )


def _with_scaled_eps(
    scales: Tree, inner: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
    """Scale eps through the gradients: an update independent of the gradient's size sees a smaller eps if they grow."""
    if all(s.eps == 1 for s in jax.tree.leaves(scales)):
        return inner
    larger = _scale_each(jax.tree.map(lambda s: 1 / s.eps, scales))

    def update(grads: Tree, state: Any, params: Tree = None, **extra: Any) -> tuple[Tree, Any]:
        """Update with larger gradients, and curvature estimates larger by the same factor."""
        if "curvature" in extra:
            tree, fresh = extra["curvature"]
            extra["curvature"] = larger.update(tree, optax.EmptyState())[0], fresh
        return inner.update(larger.update(grads, optax.EmptyState())[0], state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def build_directions(
    optimizer: Optimizer, declared: Tree, o: Optim, h: Hparams, lr: jax.Array, paired: bool = False
) -> optax.GradientTransformationExtraArgs:
    """The optimizer's transform; AdamW takes the parameters that it does not claim (`paired`: or none)."""
    claimed = {name: d for name, d in named_leaves(declared).items() if optimizer.claims(d)}
    if len(claimed) == len(named_leaves(declared)) and not paired:
        return optax.with_extra_args_support(optimizer.build(declared, o, h, lr))
    transform = optax.with_extra_args_support(optimizer.build(claimed, o, h, lr))
    rest_adam = adam.scale_by_adam(h.optim.rest_beta1, h.optim.rest_beta2, h.optim.rest_eps)
    rest = optax.chain(rest_adam, optax.scale(rest_ratio(h)))
    return _pair_transforms(set(claimed), transform, rest)


class PairedState(NamedTuple):
    """States of an optimizer (`own`) and of the AdamW for the rest; their trees are flat: {"blocks.mlp.up.w": …}."""

    own: Any
    rest: Any


def _pair_transforms(
    claimed: set[str], claimed_chain: optax.GradientTransformationExtraArgs, rest: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    def parts(tree: Tree) -> tuple[dict, dict]:
        flat = named_leaves(tree)
        return {n: flat[n] for n in flat if n in claimed}, {n: flat[n] for n in flat if n not in claimed}

    def init(params: Tree) -> PairedState:
        claimed_params, rest_params = parts(params)
        return PairedState(claimed_chain.init(claimed_params), rest.init(rest_params))

    def update(grads: Tree, state: PairedState, params: Tree = None, **extra: Any) -> tuple[Tree, PairedState]:
        (claimed_grads, rest_grads), (claimed_params, rest_params) = parts(grads), parts(params)
        claimed_updates, own_state = claimed_chain.update(claimed_grads, state.own, claimed_params, **extra)
        rest_updates, rest_state = rest.update(rest_grads, state.rest, rest_params)
        updates = claimed_updates | rest_updates
        tree = jax.tree.unflatten(jax.tree.structure(grads), [updates[n] for n in named_leaves(grads)])
        return tree, PairedState(own_state, rest_state)

    return optax.GradientTransformationExtraArgs(init, update)


class DenominatorPart(NamedTuple):
    """Second moments of some parameters {name: v}, what the optimizer divides them by, and its eps."""

    v: dict[str, jax.Array]
    correction: jax.Array | float
    eps: jax.Array


def second_moments(static: Static, h: Hparams, opt_state: tuple) -> list[DenominatorPart]:
    """The second moments in the chain's state, in fp32, of all parameters that have one."""
    optimizer = registry.find_optimizer(static.optim.name)
    state = opt_state[2 if optimizer.coupled else 1]  # after the clip, and a coupled decay
    return _second_moments(static, h, optimizer, state.inner if isinstance(state, clip.SpamState) else state)


def _second_moments(static: Static, h: Hparams, optimizer: Optimizer, state: Any) -> list[DenominatorPart]:
    o, parts, paired = static.optim, [], isinstance(state, PairedState)

    def add(moment: SecondMoment, eps: jax.Array) -> None:
        parts.append(DenominatorPart(named_leaves(moment.v), moment.correction, eps))

    if optimizer.second_moment:
        readable = user_numbers.readable_hparams(o, h)
        add(optimizer.second_moment(state.own if paired else state, o, readable), h.optim.eps)
    if paired:
        add(adam.second_moment(state.rest[0], h.optim.rest_beta2), h.optim.rest_eps)
    return parts


def _second_moment_tree(static: Static, h: Hparams, optimizer: Optimizer, state: Any) -> Tree:
    """The second moment of every parameter, as a tree like the parameters."""
    moments = {name: v for part in _second_moments(static, h, optimizer, state) for name, v in part.v.items()}
    declared = parameter_declarations(static.model)
    return jax.tree.unflatten(jax.tree.structure(declared), [moments[name] for name in named_leaves(declared)])


def _scale_each(multipliers: Any) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, _: jax.tree.map(lambda u, m: m * u, updates, multipliers))
