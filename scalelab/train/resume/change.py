"""What a run does otherwise from a step on: in rewinds of the guard, changes by hand, and what-ifs of a replay."""

import dataclasses

import jax
import numpy as np

from scalelab.errors import BadInput
from scalelab.optim.registry import find_optimizer
from scalelab.parallel.processes import gather_to_host
from scalelab.train.lineage.spec import TrainSpec
from scalelab.train.resume import handover
from scalelab.train.run.feed import DataShift
from scalelab.train.step import guard
from scalelab.train.step.state import PARTS, TrainState


@dataclasses.dataclass(frozen=True)
class Change:
    """What a run does otherwise from a step on. `jumps`: (step, batches left out there).

    `clip_factor` is held above the window's median gradient norm; `clip_norm` is the norm itself, whatever it was.
    `reset`: the optimizer's moments, and what begins with them, anew on these weights; the LR warms up again.
    """

    lr_factor: float = 1.0
    clip_factor: float = 1.0
    jumps: tuple[tuple[int, int], ...] = ()
    reset: bool = False
    clip_norm: float | None = None


def apply_change(state: TrainState, spec: TrainSpec, change: Change) -> TrainState:
    """The state from which a run goes on under `change`.

    BadInput where the guard is off or holds too many jumps, or where a reset would lose the averaged weights.
    """
    memory, step = state.guard, int(gather_to_host(state.step))
    if not isinstance(memory, guard.GuardState):
        raise BadInput("guard.policy='off' has no memory for skipped batches and factors; nearest: guard.policy=watch")
    shift = DataShift.of(memory).settle(step)
    ahead = [*shift.jumps, *(jump for jump in change.jumps if jump[0] > step)]
    if len(ahead) > guard.MOST_JUMPS:
        raise BadInput(f"{len(ahead)} stretches of skipped batches lie ahead; nearest: {guard.MOST_JUMPS}")
    counts = guard.Counts(*(int(x) for x in gather_to_host(memory.counts)))
    if change.reset:
        refuse_reset(spec.static.optim.name)
        fresh = handover.place_initial_state(spec.static, spec.hparams, state.params)
        anew = {part.name: fresh.part(part.name) for part in PARTS if part.fresh_with_moments}
        state = state._replace(opt_state=fresh.opt_state).with_parts(anew)
        counts = counts._replace(rewarm_from=step)
    lr, clip = (float(gather_to_host(x)) for x in (memory.lr_factor, memory.clip_factor))
    values = {
        "counts": np.array(counts, np.int32),
        "data_shift": np.int32(shift.by + sum(n for at, n in change.jumps if at <= step)),
        "jumps": np.array([*ahead, *[(-1, -1)] * (guard.MOST_JUMPS - len(ahead))], np.int32),
        "lr_factor": np.float32(lr * change.lr_factor),
        "clip_factor": np.float32(_clip_factor(spec, memory, counts.entered, clip, change)),
    }
    placed = {name: jax.device_put(x, getattr(memory, name).sharding) for name, x in values.items()}
    return state._replace(guard=memory._replace(**placed))


def can_reset(optimizer: str) -> bool:
    """Whether an optimizer's state can begin anew: not if the weights that are evaluated are part of it."""
    return find_optimizer(optimizer).evaluated is None


def refuse_reset(optimizer: str, asked: str = "reset=moments") -> None:
    """Raise BadInput where the optimizer's state can't begin anew."""
    if not can_reset(optimizer):
        raise BadInput(f"{asked}: {optimizer} keeps its averaged weights in its state: they would be lost")


def jump_over(state: TrainState, first: int, last: int) -> tuple[int, int]:
    """The jump over the batches `first` to `last`, both left out. BadInput where the run is past them or skips them."""
    step = int(gather_to_host(state.step))
    shift = DataShift.of(state.guard).settle(step)
    if last < first:
        raise BadInput(f"--skip-batches={first}..{last} is empty; nearest: {first}..{first}")
    at = first - shift.by
    for to, n in shift.jumps:
        at -= n if to <= at else 0
    if at < step or shift.number(at) != first:
        near = shift.number(max(at, step))
        raise BadInput(
            f"--skip-batches={first}..{last}: the run goes on at step {step}, with batch {shift.number(step)}; "
            f"nearest: {near}..{near + last - first}"
        )
    return at, last - first + 1


def _clip_factor(spec: TrainSpec, memory: guard.GuardState, entered: int, now: float, change: Change) -> float:
    """The factor of `optim.clip_norm` under `change`; what `clip_factor` gives is not below the median norm."""
    if change.clip_norm is not None:
        return _exact_factor(spec.config.optim.clip_norm, change.clip_norm)
    norms = gather_to_host(memory.window)[1]
    norms = norms[len(norms) - min(entered, len(norms)) :]
    if change.clip_factor == 1 or not len(norms):
        return now * change.clip_factor
    median = float(np.median(np.exp(norms) if spec.static.guard.detector == "log" else norms))
    return min(now, max(now * change.clip_factor, median / spec.config.optim.clip_norm))


def _exact_factor(number: float, wanted: float) -> float:
    """The fp32 factor whose product with `number` is `wanted` to the bit, where there is one; else the nearest."""
    near = np.float32(np.float32(wanted) / np.float32(number))
    factors = (near, *(np.nextafter(near, np.float32(way)) for way in (0.0, np.inf)))
    return float(next((x for x in factors if np.float32(number) * x == np.float32(wanted)), near))
