"""Health of a saved state: recorded in its manifest, and used when old steps are pruned."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.train.checkpoints.manifest import HEALTHY


def inspect_states(states: Mapping[str, Any]) -> dict[str, tuple[jax.Array, Any]]:
    """`{trial: (all parameters and moments are finite, batches skipped in a row)}`, dispatched but not waited for.

    The results are new arrays, so the next step may overwrite the states' buffers at once.
    """
    return {name: _inspect_state(state) for name, state in states.items()}


@jax.jit
def _inspect_state(state: Any) -> tuple[jax.Array, jax.Array]:
    parts = (state.params, state.opt_state) if hasattr(state, "opt_state") else state
    floats = [x for x in jax.tree.leaves(parts) if jnp.issubdtype(x.dtype, jnp.floating)]
    finite = [jnp.all(jnp.isfinite(x)) for x in floats]
    return jnp.all(jnp.stack(finite)) if finite else jnp.bool_(True), jnp.int32(getattr(state, "streak", 0))


def health_verdicts(inspections: Mapping[str, tuple[Any, Any]]) -> dict[str, str]:
    """`{trial: "healthy" or "suspect: REASON"}` from the result of `inspect_states`; waits for it."""
    return {
        name: _health_verdict(bool(finite), int(streak))
        for name, (finite, streak) in jax.device_get(dict(inspections)).items()
    }


def _health_verdict(finite: bool, streak: int) -> str:
    if not finite:
        return "suspect: parameters or moments are not finite"
    return f"suspect: the last {streak} batches were skipped" if streak else HEALTHY
