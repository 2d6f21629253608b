"""Delayed scaling of fp8 operands: a tensor's scale comes from its largest magnitudes in earlier steps.

It follows NVIDIA's Transformer Engine (`DelayedScaling`, amax_compute_algo "max", margin 0): a tensor is cast in the
pass that finds its own maximum. Values above the past maximum are clipped. The first step takes FIRST_AMAX: its own
would have to be found before the cast, by a second pass in every step's program.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.precision.fp8 import tensor_scale
from scalelab.precision.policy import Policy

HISTORY_LENGTH = 16  # steps stored; Transformer Engine's examples use 16, its default is 1024
# Of (x, w, dy), before any step. e4m3 has 18 octaves, e5m2 32: gradients of a mean over tokens from 2e-13 up pass.
FIRST_AMAX = (64.0, 1.0, 1e-3)


def init_amax_history(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Zero histories of the amax of (x, w, dy), [layers, HISTORY_LENGTH, 3], one per product declared in the blocks."""
    history = {}
    for name, part in declared.items():
        if isinstance(part, Mapping):
            if "w" in part:
                history[name] = {"s": jnp.zeros((part["w"].shape[0], HISTORY_LENGTH, 3))}
            elif inner := init_amax_history(part):
                history[name] = inner
    return history


def delayed_scales(history: Any, policy: Policy) -> Any:
    """The scales [layers, 3] of each product's operands (x, w, dy)."""
    forms = (policy.forward, policy.forward, policy.backward)

    def scales(history: jax.Array) -> jax.Array:
        amax = history.max(axis=1)
        amax = jnp.where(amax > 0, amax, jnp.broadcast_to(jnp.array(FIRST_AMAX), amax.shape))
        return jnp.stack([tensor_scale(amax[:, i], form) for i, form in enumerate(forms)], axis=1)

    return jax.tree.map(scales, history)


def update_amax_history(history: Any, amax: Any, finite: jax.Array) -> Any:
    """The history after a step with these amax [layers, 3]; unchanged if the step was not finite."""
    return jax.tree.map(
        lambda old, new: jnp.where(finite, jnp.concatenate([new[:, None], old[:, :-1]], axis=1), old), history, amax
    )
