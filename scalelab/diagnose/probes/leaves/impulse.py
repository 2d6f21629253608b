"""What a user's own optimizer keeps of a gradient: its answer to one gradient and then none, and to a constant one.

An average with decay b of a gradient g, or of its square, holds (1 - b) of it after the first step and b times as much
after each later one; a sum holds all of it at first. So a few steps tell what each array of the state is.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import replace_hparams
from scalelab.diagnose.probes.subject import Subject
from scalelab.model.declare import named_leaves
from scalelab.model.stacks import is_stack
from scalelab.optim.chain import build_optimizer_chain

SIZES = (1.0, 2.0)  # of the gradient: far above any eps
STEPS = 8  # after the first
SETTLED = 400  # steps of a constant gradient; corrections for the start end what averages of more steps lack
STEADY = 1e-3  # by how much the share that is left may differ from step to step, in fp32


def probe_impulse(subject: Subject) -> dict[str, Any]:
    """`kept/NAME` of an array of the state that is an average or sum: (power of the gradient, decay, share at first).

    `answer_power`: the power of a constant gradient that the update grows with (0: it does not), and `answer`: the RMS
    of that update at a LR of 1, both without decay. {} for optimizers of this package, which have steps by hand.
    """
    static = subject.static
    if ":" not in static.optim.name or static.updates_layers:
        return {}
    h = replace_hparams(subject.h, {"optim.clip_norm": jnp.float32(1e30), "optim.weight_decay": jnp.float32(0.0)})
    chain = build_optimizer_chain(static, h, jnp.float32(1.0))
    params = jax.tree.map(jnp.zeros_like, subject.params)
    names = [name for name in named_leaves(params) if is_stack(name.partition(".")[0]) and name.endswith(".w")]
    name = max(names, key=lambda each: named_leaves(params)[each].size)
    shape = named_leaves(params)[name].shape

    def arrays(state: Any) -> dict[str, jax.Array]:
        ends = {key: x for key, x in named_leaves(state).items() if key.endswith(f".{name}") and x.shape == shape}
        return {
            key: jnp.mean(x.astype(jnp.float32)) for key, x in ends.items() if jnp.issubdtype(x.dtype, jnp.floating)
        }

    @jax.jit
    def run(first: jax.Array, later: jax.Array) -> Any:
        def step(state: Any, g: jax.Array) -> Any:
            update, state = chain.update(jax.tree.map(lambda x: jnp.full_like(x, g), params), state, params)
            return state, (arrays(state), jnp.sqrt(jnp.mean(jnp.square(named_leaves(update)[name]))))

        rates = jnp.full((STEPS + 1,), later).at[0].set(first)
        state, seen = jax.lax.scan(step, chain.init(params), rates)
        _, settled = jax.lax.scan(step, state, jnp.full((SETTLED,), later))
        return seen[0], settled[1][-1]

    kept = [{key: np.asarray(x, float) for key, x in run(size, 0.0)[0].items()} for size in SIZES]
    values: dict[str, Any] = {}
    for key, x in kept[0].items():
        if described := describe_answer(x, kept[1][key]):
            values[f"kept/{key[: -len(name) - 1]}"] = described
    answers = [float(run(size, size)[1]) for size in SIZES]
    if min(answers) > 0 and np.isfinite(answers).all():
        values |= {"answer": answers[0], "answer_power": float(np.log2(answers[1] / answers[0]))}
    return values


def describe_answer(once: np.ndarray, doubled: np.ndarray) -> tuple[int, float, float] | None:
    """(power, decay, share at first) of an array's course [STEPS + 1] after one gradient of 1; None if it is neither an
    average nor a sum of the gradient, or of its square.
    """
    if not (np.isfinite(once).all() and np.isfinite(doubled).all() and once[0] and np.all(once > 0)):
        return None
    power = float(np.log2(doubled[0] / once[0])) if doubled[0] > 0 else 0.0
    left = once[1:] / once[:-1]
    if round(power) not in (1, 2) or abs(power - round(power)) > 0.01 or np.ptp(left) > STEADY:
        return None
    decay = float(np.median(left))
    return (round(power), decay, float(once[0])) if decay < 1 - STEADY / 2 else None
