"""The leaves of a state by name: compare what a checkpoint holds with what is to be restored."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.model.declare import named_leaves


def describe_leaves(states: Any) -> dict[str, str]:
    """Describe every leaf by name, dtype and shape: `{"run.params.embed.w": "float32[256,16]"}`."""
    return {name: f"{leaf.dtype}[{','.join(map(str, np.shape(leaf)))}]" for name, leaf in named_leaves(states).items()}


def check_same_leaves(where: str, saved: Mapping[str, str], like: Mapping[str, Any]) -> None:
    """BadInput if leaves of `like` differ from `saved` (as from `describe_leaves`); lists each, old against new."""
    requested = describe_leaves(like)
    # A dict requests these parts of a trial, anything else the whole trial.
    parts = [p for n, state in like.items() for p in ([f"{n}.{k}" for k in state] if isinstance(state, dict) else [n])]
    available = {name: kind for name, kind in saved.items() if any(f"{name}.".startswith(f"{p}.") for p in parts)}
    lines = [
        f"{name}: {available.get(name, 'absent')}, now {requested.get(name, 'absent')}"
        for name in sorted(available | requested)
        if available.get(name) != requested.get(name)
    ]
    if lines:
        raise BadInput(f"{where} holds other arrays:\n  " + "\n  ".join(lines))
