"""Measured: what a loop of one turn or none reads is tied to the turn; else a calm step takes 2.0 times as long.

A CPU, 2026-11-23, `guard.skip=micro_batch` (1.01 times with the tie; the commit's note, without a result file): XLA
runs what depends on no turn before the loop, at every step. Off: SCALELAB_TACTICS_OFF=turn.
"""

from typing import Any

import jax

from scalelab.hardware.tactics.switch import is_on


def tie_to_turn(values: Any) -> Any:
    """Tie a tree to the turn's number or state, so that nothing computed from it runs before the turn."""
    return jax.lax.optimization_barrier(values) if is_on("turn") else values
