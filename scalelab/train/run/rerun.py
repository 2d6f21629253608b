"""Take flagged steps again, at once and from the same state: other bits are a fault of the hardware (guard.rerun).

A program gives the same bits each time it is run on the same device with the same input; where it doesn't, one of the
two results is wrong. A third run, on another device where the run leaves one free, says which. Megatron-LM tells
transient from lasting faults the same way.
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from scalelab.errors import WorkFailed
from scalelab.parallel.processes import broadcast_from_first
from scalelab.train.run.run import Run
from scalelab.train.step.guard import GUARD
from scalelab.train.step.metrics import ARRAYS
from scalelab.train.step.program import Batches, Program

MOST_NAMED = 3  # devices


class Taken(NamedTuple):
    """The result of a dispatch: the states after it, and the metrics of each run."""

    states: Any
    metrics: list[Any]


def copy_states(states: Any) -> Any:
    """A copy of the states, on their devices, which the next dispatch does not overwrite."""
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding, may_alias=False), states)


class Rerun:
    """Judges each dispatch of some runs; one that is flagged after one that is not is taken again."""

    def __init__(self, runs: Sequence[Run], program: Program) -> None:
        self.runs, self.program, self.flagged = runs, program, False

    def judge(self, before: Any, batches: Batches, step: int, n: int, first: Taken) -> Taken:
        """The result that stands: `first`, or under a policy that acts the one that two of three runs have.

        `before` is a copy of the states before `step`; it is used up. WorkFailed under such a policy if no two agree.
        """
        was_flagged, self.flagged = self.flagged, broadcast_from_first(lambda: self._is_flagged(first, n))
        if not self.flagged or was_flagged:
            return first
        spare = copy_states(before)
        again = Taken(*self.program.advance(before, batches, n))
        if not (named := self._differences(first, again, n)):
            text = f"steps {step + 1} to {step + n} taken again from the same state: the same bits"
            self._note("rerun", step + n, text)
            return first
        device = _free_device(first.states)
        third = Taken(*self.program.advance(jax.device_put(spare, device) if device else spare, batches, n))
        agrees = [not self._differences(each, third, n) for each in (first, again)]
        acts, which = self.runs[0].spec.static.guard.acts, ["first", "second"][agrees[1] and not agrees[0]]
        text = (
            f"steps {step + 1} to {step + n} taken again from the same state give other bits: {named[0]}; a third time"
        )
        text += f", on {device}," if device else ""
        text += f" they are those of the {which}" if any(agrees) else " others again"
        text += f"; leave out {_places(first.states)}"
        if acts and not any(agrees):
            self._note("guard", step + n, f"{text}; the run ends")
            raise WorkFailed(f"{self.runs[0].folder}: {text}")
        goes_on = acts and which == "second"
        self._note("guard", step + n, f"{text}; the run goes on with the {'second' if goes_on else 'first'}")
        return again if goes_on else first

    def _is_flagged(self, taken: Taken, n: int) -> bool:
        """Whether the guard flags a step of a run that goes on, or a step is not finite."""
        values = jax.device_get([(each[GUARD], each["streak"]) for _, each in self._going_on(taken) if GUARD in each])
        return any(bool((report[:n, 0] > 0).any() or (streak[:n] > 0).any()) for report, streak in values)

    def _going_on(self, taken: Taken) -> list[tuple[Run, Mapping[str, Any]]]:
        pairs = zip(self.runs, taken.metrics, strict=True)
        return [(run, metrics) for run, metrics in pairs if metrics is not None and run.status == "running"]

    def _differences(self, one: Taken, other: Taken, n: int) -> list[str]:
        """The first value of each run with other bits: `train_loss 3.1 and 9.2 at the dispatch's step 2`."""
        lines = []
        for (_, ours), (_, theirs) in zip(self._going_on(one), self._going_on(other), strict=True):
            names = sorted(ours.keys() - {*ARRAYS})
            pairs = jax.device_get([(ours[name], theirs[name]) for name in names])
            bits = [_bits(x)[:n] != _bits(y)[:n] for x, y in pairs]
            steps = [int(np.argmax(each.any(axis=1))) if each.any() else n for each in bits]
            if min(steps) < n:
                k = min(range(len(names)), key=lambda i: (steps[i], names[i] != "train_loss"))
                x, y = (float(np.ravel(value[steps[k]])[0]) for value in pairs[k])
                lines.append(f"{names[k]} {x:.9g} and {y:.9g} at step {steps[k] + 1} of these")
        return lines

    def _note(self, kind: str, step: int, text: str) -> None:
        fields = {"signal": "hardware", "action": "none"} if kind == "guard" else {}
        for run in self.runs:
            if run.status == "running":
                run.event(kind, step, text, **fields)


def _bits(values: np.ndarray) -> np.ndarray:
    """The bytes of values [n, …] as [n, bytes]: NaN equals itself, and 0 is not -0."""
    values = np.ascontiguousarray(values)
    return values.view(np.uint8).reshape(len(values), -1)


def _free_device(states: Any) -> jax.Device | None:
    """Another device of this process, of the same kind, if the states lie on one alone."""
    places = {x.sharding for x in jax.tree.leaves(states)}
    if not all(isinstance(place, jax.sharding.SingleDeviceSharding) for place in places):
        return None
    used = {device for place in places for device in place.device_set}
    kinds = {device.device_kind for device in used}
    return next((d for d in jax.local_devices() if d not in used and d.device_kind in kinds), None)


def _places(states: Any) -> str:
    """The host and the devices that hold the states."""
    devices = sorted({str(d) for x in jax.tree.leaves(states) for d in x.sharding.device_set})
    return f"{', '.join(devices[:MOST_NAMED])}{', …' if len(devices) > MOST_NAMED else ''} of {socket.gethostname()}"
