"""Measured: what a loop of one turn or none reads is tied to the turn; else a calm step takes 2.0 times as long.

A CPU, 2026-11-23, `guard.skip=micro_batch` (1.01 times with the tie; the commit's note, without a result file): XLA
runs what depends on no turn before the loop, at every step. Off: SCALELAB_TACTICS_OFF=turn.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from scalelab.hardware.tactics.switch import is_on

T = TypeVar("T")


def run_if(flag: jax.Array, function: Callable[..., T], start: T, *values: object) -> T:
    """`function(start, *values)` where the traced boolean `flag` holds, else `start`, whose shapes the result has.

    This is a loop of one turn or none, not a conditional. Under vmap a conditional becomes a choice between two sides
    that all trials compute at every step; a loop ends where no trial wants it. And a conditional copies the donated
    arrays that it returns unchanged, parameters and moments among them (3 % of a step).

    Whatever the function reads and computes on must be in `values` or `start`: an array that it closes over is not tied
    to the turn, so the work on it alone may be done at every step.
    """

    def once(turn: jax.Array, carry: T) -> T:
        return function(carry, *jax.tree.map(lambda x: tie_to_turn(turn, x), values))

    return jax.lax.fori_loop(0, flag.astype(jnp.int32), once, start)


def tie_to_turn(turn: jax.Array, x: T) -> T:
    """`x`, on which no work is done before the turn. An array alone keeps how it varies over the devices of a mesh."""
    return jax.lax.optimization_barrier((turn, x))[1] if is_on("turn") else x
