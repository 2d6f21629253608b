"""Direct tests on gradients and the optimizer: accumulation, number formats, updates, moments."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from scalelab.config import replace_hparams
from scalelab.diagnose.probes.subject import Subject, batch_gradients, find_second_moments
from scalelab.model.declare import named_leaves
from scalelab.model.stacks import is_stack
from scalelab.optim.chain import build_optimizer_chain
from scalelab.optim.ema import Ema
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import upcast
from scalelab.train.step.step import jit_train_step

# Steps on constant gradients; the last one represents a settled optimizer, the one before tells whether it settles.
OPTIMIZER_STEPS = (1, 2, 5, 10, 20, 1250, 5000)

SEEN = 1e-6  # change over the size of what is changed, in fp32: some 10 units in the last place


def probe_accumulation(subject: Subject) -> dict[str, float]:
    """`accumulated_ratio`: the gradient norm with the run's micro-batches over that of one big batch."""
    static, k = subject.static, subject.static.accumulate
    if k == 1:
        return {}
    norms = [
        float(optax.tree.norm(batch_gradients(dataclasses.replace(static, accumulate=n, batch_ramp=()), subject)))
        for n in (k, 1)
    ]
    return {"accumulated_ratio": norms[0] / max(norms[1], 1e-30), "accumulate": float(k)}


def probe_precision(subject: Subject) -> dict[str, float]:
    """`zeros/NAME`: share of a parameter's gradients that are zero under the run's policy and not in fp32.

    `lost/NAME`: norm of the difference of both gradients over that in fp32. Measured under formats of fp16 only.
    """
    policy = POLICIES[subject.static.precision]
    if "float16" not in (policy.compute, policy.backward):
        return {}
    scale = subject.state.precision.scale if policy.scaled_loss else 1.0
    exact = named_leaves(batch_gradients(dataclasses.replace(subject.static, precision="fp32"), subject))
    cast = named_leaves(batch_gradients(subject.static, subject, scale))
    values = {}
    for name, g in exact.items():
        values[f"zeros/{name}"] = float(jnp.sum((cast[name] == 0) & (g != 0)) / jnp.maximum(jnp.sum(g != 0), 1))
        values[f"lost/{name}"] = float(optax.tree.norm(cast[name] - g) / jnp.maximum(optax.tree.norm(g), 1e-30))
    return values


def probe_optimizer(subject: Subject) -> dict[str, float]:
    """`update_rms/STEP`: RMS of the optimizer's updates on constant gradients, without decay, at a LR of 1."""
    changed = {"optim.weight_decay": jnp.float32(0.0), "optim.clip_norm": jnp.float32(1e30)}
    h = replace_hparams(subject.h, changed)
    params = jax.tree.map(jnp.zeros_like, subject.params)
    grads = jax.tree.map(lambda x: jnp.full_like(x, 1e-2), params)
    chain = build_optimizer_chain(subject.static, h, jnp.float32(1.0))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))

    @jax.jit
    def run(n: jax.Array) -> jax.Array:
        def step(_: jax.Array, carry: Any) -> Any:
            return chain.update(grads, carry[1], params)

        return optax.tree.norm(jax.lax.fori_loop(0, n, step, (params, chain.init(params)))[0]) / size**0.5

    return {f"update_rms/{n}": float(run(jnp.int32(n))) for n in OPTIMIZER_STEPS}


def probe_moments(subject: Subject) -> dict[str, float]:
    """`gradient_over_v`: RMS of the gradient over the RMS of sqrt(v); `eps_share`: share of sqrt(v_hat) below eps.

    The share is that of the blocks: rows of tokens that hardly occur have small moments at any eps.
    """
    second = find_second_moments(subject.state.opt_state)
    if second is None:
        return {}
    grads, v = jax.tree.leaves(batch_gradients(subject.static, subject)), jax.tree.leaves(second.nu)
    clip = jnp.minimum(1.0, subject.h.optim.clip_norm / optax.tree.norm(grads))
    total = sum(leaf.size for leaf in v)
    rms_g = clip * optax.tree.norm(grads) / total**0.5
    rms_v = jnp.sqrt(sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in v) / total)
    correction = 1 - subject.h.optim.beta2 ** jnp.maximum(second.count, 1)
    blocks = [leaf for name, leaf in named_leaves(second.nu).items() if is_stack(name.partition(".")[0])]
    used = sum(jnp.sum(leaf > 0) for leaf in blocks)
    eps = subject.h.optim.eps
    small = lambda leaf: (leaf > 0) & (jnp.sqrt(leaf.astype(jnp.float32) / correction) < eps)  # noqa: E731
    below = sum(jnp.sum(small(leaf)) for leaf in blocks)
    ratio = float(rms_g / jnp.maximum(rms_v / jnp.sqrt(correction), 1e-30))
    return {"gradient_over_v": ratio, "eps_share": float(below / jnp.maximum(used, 1))}


def probe_decay(subject: Subject) -> dict[str, float]:
    """What a user's own optimizer does to the weights where all gradients are zero, from a fresh state at a LR of 1.

    `own_decay`: by what share it shrinks them (matrices of the blocks, median); `own_decay_rest`: norm of what else it
    does, over that of all it does. {} where that is nothing, or no number.
    """
    if ":" not in subject.static.optim.name or subject.static.updates_layers:
        return {}
    h = replace_hparams(subject.h, {"optim.clip_norm": jnp.float32(1e30)})
    chain = build_optimizer_chain(subject.static, h, jnp.float32(1.0))
    zeros = jax.tree.map(jnp.zeros_like, subject.params)
    moves, _ = jax.jit(lambda p: chain.update(zeros, chain.init(p), p))(subject.params)
    weights = {name: p for name, p in named_leaves(subject.params).items() if is_stack(name.partition(".")[0])}
    pairs = [(p, named_leaves(moves)[name]) for name, p in weights.items() if name.endswith(".w")]
    sizes = [float(jnp.sum(u * u)) for _, u in pairs]
    if not pairs or not 0 < sum(sizes) < float("inf"):
        return {}
    shares = [-float(jnp.sum(u * p) / jnp.maximum(jnp.sum(p * p), 1e-30)) for p, u in pairs]
    rest = sum(float(jnp.sum(jnp.square(u + share * p))) for share, (p, u) in zip(shares, pairs, strict=True))
    return {"own_decay": sorted(shares)[len(shares) // 2], "own_decay_rest": (rest / sum(sizes)) ** 0.5}


def probe_average(subject: Subject) -> dict[str, float]:
    """`average_share`: the share of the new weights in the average of the weights, by one step taken again.

    `average_due`: (1 - d) / (1 - d^t) of its t-th step. {} if nothing is averaged, or rounding hides what a step adds.
    """
    static = dataclasses.replace(subject.static, layers=False)
    before = subject.state.ema
    if not isinstance(before, Ema):
        return {}
    after, _ = jit_train_step(static)(jax.tree.map(jnp.copy, subject.state), subject.tokens, subject.h)
    if int(after.ema.steps) != int(before.steps) + 1:
        return {}  # the guard refused the step
    weights = upcast(after.params, POLICIES[static.precision].parameters)
    way = jax.tree.map(lambda p, m: p.astype(jnp.float32) - m, weights, before.mean)
    moved = jax.tree.map(jnp.subtract, after.ema.mean, before.mean)
    decay, squared = float(subject.h.train.ema), float(optax.tree.vdot(way, way))
    due = (1 - decay) / (1 - decay ** (int(before.steps) + 1))
    if due * squared**0.5 <= SEEN * float(optax.tree.norm(before.mean)):
        return {}
    return {"average_share": float(optax.tree.vdot(moved, way)) / squared, "average_due": due}
