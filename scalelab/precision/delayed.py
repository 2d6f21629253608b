"""Delayed scaling of fp8 operands: the scale of a tensor comes from its largest magnitudes in the steps before.

As NVIDIA's Transformer Engine does it (`DelayedScaling`, amax_compute_algo "max", margin 0): so that a cast needn't wait for a
pass over its own tensor. What outgrows its past is clipped. The first step has no past and takes its own amax.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.precision.fp8 import fp8_scale
from scalelab.precision.policy import Policy

HISTORY_LENGTH = 16  # steps remembered; Transformer Engine's examples take 16, its default is 1024


def init_amax_history(declared: Mapping[str, Any]) -> dict[str, Any]:
    """A history for each product of the blocks, whose declarations these are: amax of (x, w, dy), [layers, LENGTH, 3]."""
    found = {}
    for name, part in declared.items():
        if isinstance(part, Mapping):
            if "w" in part:
                found[name] = {"s": jnp.zeros((part["w"].shape[0], HISTORY_LENGTH, 3))}
            elif inner := init_amax_history(part):
                found[name] = inner
    return found


def delayed_scales(history: Any, policy: Policy) -> Any:
    """The scales [layers, 3] of each product's operands; 0 where there is no past."""
    forms = (policy.forward, policy.forward, policy.backward)

    def of(history: jax.Array) -> jax.Array:
        amax = history.max(axis=1)
        each = jnp.stack([fp8_scale(amax[:, i], form) for i, form in enumerate(forms)], axis=1)
        return jnp.where(amax > 0, each, 0.0)

    return jax.tree.map(of, history)


def update_amax_history(history: Any, amax: Any, finite: jax.Array) -> Any:
    """The history after a step with these amax [layers, 3]; a step that was not finite leaves no trace."""
    return jax.tree.map(
        lambda old, new: jnp.where(finite, jnp.concatenate([new[:, None], old[:, :-1]], axis=1), old), history, amax
    )
