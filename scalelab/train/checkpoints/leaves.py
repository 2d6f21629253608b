"""The leaves of a state by name: compare what a checkpoint holds with what is to be restored."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.model.declare import named_leaves
from scalelab.train.step.memory import GuardState, former_shapes, upgrade_memory

GUARD = "guard"  # the field of a state that former versions saved in another form


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


def as_saved(saved: Mapping[str, str], like: Mapping[str, Any]) -> dict[str, Any]:
    """`like` with guard memories in the form in which `saved` (as from `describe_leaves`) holds them."""
    states = {}
    for name, state in like.items():
        memory = _memory_of(state)
        if isinstance(memory, GuardState):
            former = former_shapes(memory)
            counts = f"{name}.{GUARD}.counts"
            if saved.get(counts) == describe_leaves({name: {GUARD: former}})[counts]:
                state = _with_memory(state, former)
        states[name] = state
    return states


def upgrade_states(states: Mapping[str, Any], step: int) -> dict[str, Any]:
    """States restored from `step`, with guard memories of former versions in today's form."""
    upgraded = {}
    for name, state in states.items():
        memory = _memory_of(state)
        is_memory = isinstance(memory, GuardState)
        upgraded[name] = _with_memory(state, upgrade_memory(memory, step)) if is_memory else state
    return upgraded


def _memory_of(state: Any) -> Any:
    return state.get(GUARD) if isinstance(state, dict) else getattr(state, GUARD, None)


def _with_memory(state: Any, memory: GuardState) -> Any:
    return state | {GUARD: memory} if isinstance(state, dict) else state._replace(guard=memory)
