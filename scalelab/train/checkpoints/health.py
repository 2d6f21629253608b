"""Health of a saved state: recorded in its manifest, and used when old steps are pruned.

A healthy state is finite, its last batches were taken, the guard is calm, and the median of its last 8 losses is sound:
above that of a uniform guess by at most HIGH_MARGIN, and not far above the run's best since the last known change or
new level (`incident.py`: 4 standard deviations of a step's loss, and a tenth).
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.parallel.processes import compile_together
from scalelab.train.checkpoints.manifest import HEALTHY
from scalelab.train.step.guard import Counts, GuardState, Marks
from scalelab.train.step.incident import BACK, HIGH_MARGIN

CALM_STEPS = 64  # steps without a flag of the guard before a healthy save


class Inspection(NamedTuple):
    """What is measured of a state that is saved. `flag`: the step flagged last, if that counts still, else -1.

    `elevated`: steps in a row far above the best; `loss`, `best`: medians of 8 losses in nats, now and the lowest, NaN
    without a guard.
    """

    finite: Any
    streak: Any  # batches skipped in a row
    flag: Any
    elevated: Any = 0
    loss: Any = math.nan
    best: Any = math.nan


def inspect_states(states: Mapping[str, Any]) -> dict[str, Inspection]:
    """`{trial: Inspection}`, dispatched but not waited for.

    The results are new arrays, so the next step may overwrite the states' buffers at once.
    """
    return {name: _inspect_state(state) for name, state in states.items()}


@functools.partial(compile_together, purpose="looking for numbers that are not finite")
@jax.jit
def _inspect_state(state: Any) -> Inspection:
    parts = (state.params, state.opt_state) if hasattr(state, "opt_state") else state
    floats = [x for x in jax.tree.leaves(parts) if jnp.issubdtype(x.dtype, jnp.floating)]
    finite = [jnp.all(jnp.isfinite(x)) for x in floats]
    all_finite = jnp.all(jnp.stack(finite)) if finite else jnp.bool_(True)
    seen = all_finite, jnp.int32(getattr(state, "streak", 0)), _last_alarm(state)
    memory = getattr(state, "guard", ())
    if not isinstance(memory, GuardState):
        return Inspection(*seen)
    elevated, best = Counts(*memory.counts).elevated, jnp.exp(Marks(*memory.marks).best)
    return Inspection(*seen, elevated, jnp.median(memory.recent[-BACK:]), best)


def _last_alarm(state: Any) -> jax.Array:
    memory = getattr(state, "guard", ())
    if not isinstance(memory, GuardState):
        return jnp.int32(-1)
    counts = Counts(*memory.counts)
    alarmed = (counts.last_flag >= 0) & ((state.step - counts.last_flag <= CALM_STEPS) | (counts.is_open == 1))
    return jnp.where(alarmed, counts.last_flag, -1)


def health_verdicts(
    inspections: Mapping[str, Inspection], difference: str = "", ceilings: Mapping[str, float] | None = None
) -> dict[str, str]:
    """`{trial: "healthy" or "suspect: REASON"}` from the result of `inspect_states`; waits for it.

    `difference`: what `copies.describe_difference` says, which makes every trial suspect. `ceilings`: the loss of a
    uniform guess, by trial.
    """
    return {
        name: f"suspect: {difference}" if difference else _health_verdict(each, (ceilings or {}).get(name, math.inf))
        for name, each in jax.device_get(dict(inspections)).items()
    }


def _health_verdict(seen: Inspection, ceiling: float) -> str:
    if not seen.finite:
        return "suspect: parameters or moments are not finite"
    if seen.streak:
        return f"suspect: the last {int(seen.streak)} batches were skipped"
    if seen.flag >= 0:
        return f"suspect: the guard flagged step {int(seen.flag) + 1}"
    if ceiling + HIGH_MARGIN < seen.loss < math.inf:
        return f"suspect: a loss of {float(seen.loss):.4g} nats is no better than a uniform guess ({ceiling:.4g})"
    if seen.elevated:
        return f"suspect: a loss of {float(seen.loss):.4g} nats is far above the best, {float(seen.best):.4g}"
    return HEALTHY
