"""Health of a saved state: recorded in its manifest, and used when old steps are pruned."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.parallel.processes import compile_together
from scalelab.train.checkpoints.manifest import HEALTHY
from scalelab.train.step.guard import Counts, GuardState

CALM_STEPS = 64  # steps without a flag of the guard before a healthy save


def inspect_states(states: Mapping[str, Any]) -> dict[str, tuple[jax.Array, ...]]:
    """`{trial: (all parameters and moments are finite, batches skipped in a row, …)}`, dispatched but not waited for.

    The third is the step that the guard flagged last, if that is within CALM_STEPS, else -1.

    The results are new arrays, so the next step may overwrite the states' buffers at once.
    """
    return {name: _inspect_state(state) for name, state in states.items()}


@functools.partial(compile_together, purpose="looking for numbers that are not finite")
@jax.jit
def _inspect_state(state: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    parts = (state.params, state.opt_state) if hasattr(state, "opt_state") else state
    floats = [x for x in jax.tree.leaves(parts) if jnp.issubdtype(x.dtype, jnp.floating)]
    finite = [jnp.all(jnp.isfinite(x)) for x in floats]
    all_finite = jnp.all(jnp.stack(finite)) if finite else jnp.bool_(True)
    return all_finite, jnp.int32(getattr(state, "streak", 0)), _last_alarm(state)


def _last_alarm(state: Any) -> jax.Array:
    memory = getattr(state, "guard", ())
    if not isinstance(memory, GuardState):
        return jnp.int32(-1)
    counts = Counts(*memory.counts)
    alarmed = (counts.last_flag >= 0) & ((state.step - counts.last_flag <= CALM_STEPS) | (counts.is_open == 1))
    return jnp.where(alarmed, counts.last_flag, -1)


def health_verdicts(inspections: Mapping[str, tuple[jax.Array, ...]], difference: str = "") -> dict[str, str]:
    """`{trial: "healthy" or "suspect: REASON"}` from the result of `inspect_states`; waits for it.

    `difference`: what `copies.describe_difference` says, which makes every trial suspect.
    """
    return {
        name: f"suspect: {difference}" if difference else _health_verdict(bool(finite), int(streak), int(flag))
        for name, (finite, streak, flag) in jax.device_get(dict(inspections)).items()
    }


def _health_verdict(finite: bool, streak: int, flag: int) -> str:
    if not finite:
        return "suspect: parameters or moments are not finite"
    if streak:
        return f"suspect: the last {streak} batches were skipped"
    return f"suspect: the guard flagged step {flag + 1}" if flag >= 0 else HEALTHY
