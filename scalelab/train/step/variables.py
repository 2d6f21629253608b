"""What a step has found out by its end, from which a run's other state moves on."""

from typing import NamedTuple

import jax

from scalelab.optim.ema import Ema
from scalelab.optim.schedules import Hparams
from scalelab.precision.states import Tree
from scalelab.train.step import guard
from scalelab.train.step.gradients import Gradient


class Verdict(NamedTuple):
    """What is decided on a step before its update."""

    loss: jax.Array  # nats a token
    finite: jax.Array  # whether all that an update needs is
    accepted: jax.Array  # whether the update is taken
    alarm: guard.Decision | None  # the guard's decision; None: it is off
    now: Hparams  # the numbers of the update, with the schedule's at this step
    curvature: dict[str, tuple[object, jax.Array]]  # keyword of optimizers that use it: (estimate, whether it is new)
    due: jax.Array | None  # whether layers are measured; None: never
    logged: jax.Array  # whether the step's metrics are written


class Norms(NamedTuple):
    """Norms of the update and of the weights after it; both, and shares under eps, by layer (`layers.Norms`)."""

    update: jax.Array
    weights: jax.Array
    by_layer: dict[str, dict[str, jax.Array]]


class Updated(NamedTuple):
    """What an update changes, as stored, and its norms. `kept`: the precision policy's part that changes with it."""

    params: Tree
    opt_state: Tree
    ema: Ema | tuple[()]
    kept: Tree
    norms: Norms


class Outcome(NamedTuple):
    """Step `step` on `tokens` [B, S+1] under the config's numbers `h`, from its gradient to its update."""

    step: jax.Array
    tokens: jax.Array
    h: Hparams
    gradient: Gradient
    verdict: Verdict
    updated: Updated


def signals_of(step: jax.Array, gradient: Gradient, verdict: Verdict) -> guard.Signals:
    """What the guard looks at, of a step."""
    signals = guard.Signals(step, verdict.loss, gradient.norm, verdict.finite)
    return signals if gradient.left_out is None else signals._replace(left_out=gradient.left_out)
