"""What a user's own optimizer makes of gradients: its answer to one gradient and then none, and to constant ones.

An average with decay b of a gradient g, or of its square, holds (1 - b) of it after the first step and b times as much
after each later one; a sum holds all of it at first. So a few steps tell what each array of the state is. On constant
gradients an optimizer that divides by their size moves every number by about the LR, at every step.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import replace_hparams
from scalelab.diagnose.probes.subject import Subject
from scalelab.model.declare import named_leaves
from scalelab.model.stacks import is_stack
from scalelab.optim.chain import build_optimizer_chain

SIZES = (1.0, 2.0)  # of the gradient: far above any eps
SMALL = 100.0  # times the declared eps, of a gradient that is still far above it
STEPS = 8  # after the first
SETTLED, LAST = 400, 16  # steps of constant gradients, whose corrections for the start end soon; and those looked at
LARGE = 1e3  # times the usual gradient: even an average with a decay of 0.99 turns at once
STEADY = 1e-3  # by how much the share that is left may differ from step to step, in fp32


class Optimizer(NamedTuple):
    """A chain without clip and decay at a LR of 1, its parameters (zeros), signs of their gradients, and one leaf."""

    chain: Any
    params: Any
    signs: Any
    leaf: str


def probe_impulse(subject: Subject) -> dict[str, Any]:
    """`kept/NAME` of an array of the state that is an average or sum: (power of the gradient, decay, share at first).

    `fed/NAME` of another array: (the array whose squares it averages, decay). `answer/NAME`: RMS of a parameter's
    updates under constant gradients of random signs; `answer_power`: the power of the gradient that they grow with (0:
    they do not); `answer_small`: the same RMS over that of a gradient near eps; `idle_steps`: the share of steps
    without any update; `answer_late`: by how much a step's update, and the next one's, differ if that step's gradient
    is turned round and LARGE times as large. {} for optimizers of this package, which have steps by hand.
    """
    static = subject.static
    if ":" not in static.optim.name or static.updates_layers:
        return {}
    optimizer = _build(subject)
    run = jax.jit(lambda first, later: _run(optimizer, first, later))
    kept = [{key: np.asarray(x, float) for key, x in run(size, 0.0)[0].items()} for size in SIZES]
    values: dict[str, Any] = {}
    for key, x in kept[0].items():
        if described := describe_answer(x, kept[1][key]):
            values[f"kept/{key[: -len(optimizer.leaf) - 1]}"] = described
        elif found := find_fed(x, {k: y for k, y in kept[0].items() if k != key}):
            own, source = (name[: -len(optimizer.leaf) - 1] for name in (key, found[0]))
            values[f"fed/{own}"] = source, found[1]
    return values | _answers(subject, run)


def _build(subject: Subject) -> Optimizer:
    h = replace_hparams(subject.h, {"optim.clip_norm": jnp.float32(1e30), "optim.weight_decay": jnp.float32(0.0)})
    params = jax.tree.map(jnp.zeros_like, subject.params)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    signs = [jax.random.rademacher(key, x.shape, x.dtype) for key, x in zip(keys, leaves, strict=True)]
    sizes = {name: x.size for name, x in named_leaves(params).items() if name.endswith(".w")}
    leaf = max(sizes, key=lambda name: (is_stack(name.partition(".")[0]), sizes[name]))
    chain = build_optimizer_chain(subject.static, h, jnp.float32(1.0))
    return Optimizer(chain, params, jax.tree.unflatten(tree, signs), leaf)


def _run(
    optimizer: Optimizer, first: jax.Array, later: jax.Array
) -> tuple[dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    """A gradient of size `first` and then of `later`: (arrays' mean sizes after each of the first steps, RMS of each
    leaf's update in each of the LAST steps, `_delay` after them).
    """
    chain, params, signs, leaf = optimizer
    shape = named_leaves(params)[leaf].shape

    def arrays(state: Any) -> dict[str, jax.Array]:
        ends = {key: x for key, x in named_leaves(state).items() if key.endswith(f".{leaf}") and x.shape == shape}
        floating = {key: x for key, x in ends.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        return {key: jnp.mean(jnp.abs(x.astype(jnp.float32))) for key, x in floating.items()}

    def step(state: Any, g: jax.Array) -> Any:
        update, state = chain.update(jax.tree.map(lambda sign: g * sign, signs), state, params)
        sizes = {name: jnp.sqrt(jnp.mean(jnp.square(x))) for name, x in named_leaves(update).items()}
        return state, (arrays(state), sizes)

    rates = jnp.full((STEPS + 1,), later).at[0].set(first)
    state, (kept, _) = jax.lax.scan(step, chain.init(params), rates)
    state, _ = jax.lax.scan(lambda s, g: (step(s, g)[0], None), state, jnp.full((SETTLED,), later))
    return kept, jax.lax.scan(step, state, jnp.full((LAST,), later))[1][1], _delay(optimizer, state, later)


def _delay(optimizer: Optimizer, state: Any, size: jax.Array) -> jax.Array:
    """The largest difference [2] of the update, and of the next one, by a gradient turned round, LARGE times as large.

    Of equal gradients before it: an average of signs, and one of the gradients, both turn with it.
    """
    chain, params, signs, _ = optimizer
    usual = jax.tree.map(lambda sign: size * sign, signs)
    pairs, states = [], (state, state)
    for turned in (-LARGE, 1.0):
        grads = usual, jax.tree.map(lambda g, times=turned: times * g, usual)
        taken = [chain.update(g, s, params) for g, s in zip(grads, states, strict=True)]
        states = taken[0][1], taken[1][1]
        pairs.append(jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), taken[0][0], taken[1][0]))
    return jnp.stack([jnp.max(jnp.stack(jax.tree.leaves(pair))) for pair in pairs])


def _answers(subject: Subject, run: Callable[[float, float], Any]) -> dict[str, Any]:
    """The measurements of constant gradients; {} if an update is not finite, or all are zero."""
    taken = [run(size, size) for size in SIZES]
    courses = [{name: np.asarray(x, float) for name, x in course.items()} for _, course, _ in taken]
    sizes = [{name: float(np.sqrt(np.mean(x * x))) for name, x in course.items()} for course in courses]
    usual = [float(np.median(list(by_name.values()))) for by_name in sizes]
    if not np.isfinite(usual).all() or min(usual) <= 0:
        return {}
    values: dict[str, Any] = {f"answer/{name}": size for name, size in sizes[0].items()}
    values |= {"answer_usual": usual[0], "answer_power": float(np.log2(usual[1] / usual[0]))}
    values["answer_late"] = tuple(map(float, taken[0][2]))
    values["idle_steps"] = float(np.mean(np.max(np.stack(list(courses[0].values())), axis=0) == 0))
    eps = float(subject.h.optim.eps) if hasattr(subject.h.optim, "eps") else 0.0
    if eps > 0:
        near_eps = run(SMALL * eps, SMALL * eps)[1]
        near = [float(np.sqrt(np.mean(np.square(np.asarray(x, float))))) for x in near_eps.values()]
        values["answer_small"] = float(np.median(near)) / usual[0]
    return values


def describe_answer(once: np.ndarray, doubled: np.ndarray) -> tuple[int, float, float] | None:
    """(power, decay, share at first) of an array's course [STEPS + 1] after one gradient of 1; None if it is no
    geometric course of the gradient, or of its square. The decay is 0 where nothing is left after one step.
    """
    if not (np.isfinite(once).all() and np.isfinite(doubled).all() and once[0] > 0 and doubled[0] > 0):
        return None
    power, left = float(np.log2(doubled[0] / once[0])), once[1:] / np.where(once[:-1] > 0, once[:-1], 1.0)
    if round(power) not in (1, 2) or abs(power - round(power)) > 0.01 or np.ptp(left) > STEADY:
        return None
    decay = float(np.median(left))
    return (round(power), decay, float(once[0])) if decay < 1 - STEADY / 2 else None


def find_fed(course: np.ndarray, others: Mapping[str, np.ndarray]) -> tuple[str, float] | None:
    """(name, decay) of the array of which an array's course [STEPS + 1] averages the squares; None without such."""
    for name, x in others.items():
        squares = np.square(x)
        decay = 1.0 - course[0] / squares[0] if squares[0] > 0 else 0.0
        due = decay * course[:-1] + (1.0 - decay) * squares[1:]
        if 0 < decay < 1 and np.allclose(due, course[1:], rtol=STEADY, atol=0.0):
            return name, float(decay)
    return None
