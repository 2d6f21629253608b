"""The leaves of a state by name: what a checkpoint holds against what is asked of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.model.declare import named_leaves


def describe_leaves(states: Any) -> dict[str, str]:
    """`{"run.params.embed.w": "float32[256,16]"}`: every leaf's name, dtype and shape."""
    return {name: f"{leaf.dtype}[{','.join(map(str, np.shape(leaf)))}]" for name, leaf in named_leaves(states).items()}


def check_same_leaves(where: str, saved: Mapping[str, str], like: Mapping[str, Any]) -> None:
    """BadInput with every leaf that `like` has otherwise than `saved` (as `describe_leaves` gives it), old against new."""
    wanted = describe_leaves(like)
    # A dict of parts asks for these parts of a trial, anything else for all of it.
    parts = [p for n, state in like.items() for p in ([f"{n}.{k}" for k in state] if isinstance(state, dict) else [n])]
    kept = {name: kind for name, kind in saved.items() if any(f"{name}.".startswith(f"{p}.") for p in parts)}
    lines = [
        f"{name}: {kept.get(name, 'absent')}, now {wanted.get(name, 'absent')}"
        for name in sorted(kept | wanted)
        if kept.get(name) != wanted.get(name)
    ]
    if lines:
        raise BadInput(f"{where} holds other arrays:\n  " + "\n  ".join(lines))
