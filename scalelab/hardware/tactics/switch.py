"""One switch for all tactics: SCALELAB_TACTICS_OFF names those that programs are traced without (`a,b` or `all`).

Results stay equal except for rounding; time or memory changes. A measurement without a tactic shows its worth on a
card, or that a new compiler no longer needs it. Processes of one run need equal values, as of XLA_FLAGS.
"""

import os
from collections.abc import Mapping

from scalelab.errors import BadInput, nearest_hint

VARIABLE, EVERY = "SCALELAB_TACTICS_OFF", "all"
TACTICS = (
    "cast_with_maximum",
    "compiler_options",  # hardware/compiler_options.py
    "exchange",
    "held_gradient",
    "narrow_result",
    "parameter_copy",
    "parts",  # model/products/parts.py
    "stack_layout",
    "transposed_copy",
    "turn",
    "two_matrices",
)


def tactics_off(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Tactics that are switched off, sorted; BadInput if the variable names an unknown one."""
    names = {name.strip() for name in environment.get(VARIABLE, "").split(",")} - {""}
    for name in sorted(names - {EVERY, *TACTICS}):
        raise BadInput(f"{VARIABLE}: {name!r} is not a tactic{nearest_hint(name, (EVERY, *TACTICS))}")
    return TACTICS if EVERY in names else tuple(sorted(names))


def is_on(tactic: str) -> bool:
    """Whether programs are traced with a tactic."""
    return tactic not in tactics_off()
