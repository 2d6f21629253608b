"""Going back: where a run goes on from after the guard's alarms, and what it does otherwise from there on.

A decision is on disk (`guard.json` of the run, and an event) before it acts, and a checkpoint's facts hold the
decisions that its past has followed. So a run that is killed at any point of a rewind resumes to the same bits: what a
checkpoint lacks of `guard.json` is done when it is restored. The first rewind skips the batches around the alarm; the
second within 2,000 steps also lowers LR and clip; the third resets the optimizer's moments too. Then the run ends.

PaLM (Chowdhery et al. 2022, section 5.1) went back 100 steps and skipped 200 to 500 batches; OPT lowered LR and clip.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from scalelab.errors import BadInput, quote_path
from scalelab.parallel.processes import broadcast_from_first, gather_to_host, is_first_process
from scalelab.record import records
from scalelab.train import ledger
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage.spec import TrainSpec
from scalelab.train.resume import handover
from scalelab.train.run.alarms import Call
from scalelab.train.run.feed import DataShift
from scalelab.train.run.run import Run
from scalelab.train.step import guard
from scalelab.train.step.state import PARTS, TrainState

MOST_REWINDS = 3
MARGIN, LEAST, MOST = 100, 200, 500  # steps before and after the flags, and how many batches are skipped
ESCALATION_STEPS = 2000
LR_FACTOR, CLIP_FACTOR = 0.7, 0.5
FILE = "guard.json"


@dataclasses.dataclass(frozen=True)
class Change:
    """What a run does otherwise from a step on. `jumps`: (step, batches left out there)."""

    lr_factor: float = 1.0
    clip_factor: float = 1.0
    jumps: tuple[tuple[int, int], ...] = ()
    reset: bool = False


def apply_change(state: TrainState, spec: TrainSpec, change: Change) -> TrainState:
    """The state from which a run goes on under `change`. BadInput where the guard is off, or holds too many jumps."""
    memory, step = state.guard, int(gather_to_host(state.step))
    if not isinstance(memory, guard.GuardState):
        raise BadInput("guard.policy='off' has no memory for skipped batches and factors; nearest: guard.policy=watch")
    shift = DataShift.of(memory)
    ahead = [*shift.jumps, *(jump for jump in change.jumps if jump[0] > step)]
    if len(ahead) > guard.MOST_JUMPS:
        raise BadInput(f"{len(ahead)} stretches of skipped batches lie ahead; nearest: {guard.MOST_JUMPS}")
    counts = guard.Counts(*(int(x) for x in gather_to_host(memory.counts)))
    if change.reset:
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
        "clip_factor": np.float32(_clip_factor(spec, memory, counts.entered, clip, change.clip_factor)),
    }
    placed = {name: jax.device_put(x, getattr(memory, name).sharding) for name, x in values.items()}
    return state._replace(guard=memory._replace(**placed))


def jump_over(state: TrainState, first: int, last: int) -> tuple[int, int]:
    """The jump over the batches `first` to `last`, both left out. BadInput where the run is past them or skips them."""
    shift, step = DataShift.of(state.guard), int(gather_to_host(state.step))
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


def _clip_factor(spec: TrainSpec, memory: guard.GuardState, entered: int, now: float, factor: float) -> float:
    """The clip's factor after `factor`, so that the clip is not below the window's median gradient norm."""
    norms = gather_to_host(memory.window)[1][:entered]
    if factor == 1 or not len(norms):
        return now * factor
    median = float(np.median(np.exp(norms) if spec.static.guard.detector == "log" else norms))
    return min(now, max(now * factor, median / spec.config.optim.clip_norm))


def read_decisions(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """The rewinds of a run so far, by their number."""
    path = folder / FILE
    content: dict[str, dict[str, Any]] = (
        records.read_json(path, {"rewinds": {"*": {}}})["rewinds"] if path.exists() else {}
    )
    return content


def decide_rewind(run: Run, call: Call, checkpoints: pathlib.Path, name: str) -> bool:
    """Decide, and write down, where the run goes back to; false if it ends instead, as diverged."""
    decision = broadcast_from_first(lambda: _plan_rewind(run, call, checkpoints, name))
    if "to" not in decision:
        run.diverge(call.step, decision["why"], by_guard=True)
        run.keep_record(call.step)
        return False
    decisions = broadcast_from_first(lambda: read_decisions(run.folder))
    given_up = ledger.count_between(run.spec.stretches, decision["to"], call.step, run.record["flops_per_token"])
    decisions[str(len(decisions) + 1)] = decision | {"discarded": given_up}
    if is_first_process():
        records.write_json(run.folder / FILE, {"rewinds": decisions})
    first, last = decision["batches"]
    text = f"{call.why}: back to step {decision['to']}, batches {first} to {last} skipped"
    text += f", LR x {decision['lr_factor']:g}, clip x {decision['clip_factor']:g}" if decision["severity"] > 1 else ""
    text += ", moments reset" if decision["reset"] else ""
    fields = {"signal": call.why, "action": "rewind", "from": call.step, "to": decision["to"]}
    run.event(
        "guard",
        call.step,
        text,
        **fields,
        batches=[first, last],
        cost_steps=call.step - decision["to"],
        number=len(decisions),
    )
    return True


def _plan_rewind(run: Run, call: Call, checkpoints: pathlib.Path, name: str) -> dict[str, Any]:
    """The decision, or {"why": why there is none}."""
    past = read_decisions(run.folder)
    healthy = _healthy_steps(checkpoints, name, past)
    before = [step for step in healthy if step <= call.first_flag - MARGIN] or [
        step for step in healthy[:1] if step <= call.first_flag
    ]
    if len(past) >= MOST_REWINDS or not before:
        cause = f"after {len(past)} rewinds" if before else f"no healthy checkpoint before step {call.first_flag + 1}"
        last = before[-1] if before else None
        way = (
            f"; step {last} is healthy: scalelab train --init-from={quote_path(run.folder)}@{last} with another LR or "
            "data goes on"
        )
        return {"why": f"the guard: {call.why}, {cause}{way if before else ''}"}
    to = before[-1]
    recent = [entry for entry in past.values() if call.step - entry["step"] <= ESCALATION_STEPS]
    severity = 1 + len(recent)
    first = max(call.first_flag - MARGIN, to)
    last = min(max(call.last_flag + MARGIN, first + LEAST - 1), first + MOST - 1)
    lost = [entry for number, entry in past.items() if int(number) > _count(checkpoints / str(to), name)]
    shift = sum(n for at, n in (entry["jump"] for entry in past.values()) if at <= first)
    return {
        "step": call.step, "why": call.why, "flags": [call.first_flag, call.last_flag], "to": to, "severity": severity,
        "jump": [first, last - first + 1], "batches": [first + shift, last + shift],
        "lr_factor": LR_FACTOR if severity > 1 else 1.0, "clip_factor": CLIP_FACTOR if severity > 1 else 1.0,
        "reset": severity > 2, "lost": len(lost),
    }  # fmt: skip


def _healthy_steps(checkpoints: pathlib.Path, name: str, past: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Intact steps of the run's present past, saved without an alarm."""
    healthy = []
    for step in manifest.list_steps(checkpoints):
        place = checkpoints / str(step)
        if manifest.find_step_problems(place, contents=False):
            continue
        content = manifest.read_manifest(place)
        undone = [entry["to"] for number, entry in past.items() if int(number) > _count(place, name)]
        if content.get("health", {}).get(name, manifest.HEALTHY) == manifest.HEALTHY and step <= min([step, *undone]):
            healthy.append(step)
    return healthy


def _count(place: pathlib.Path, name: str) -> int:
    """How many rewinds the past of a saved step has followed."""
    return len(manifest.read_manifest(place)["facts"][name].get("rewinds", {}))


def drop_abandoned_steps(folder: pathlib.Path) -> None:
    """Delete the checkpoints of a single run that its last rewind left behind."""
    place = folder / "checkpoints"

    def drop() -> None:
        past = read_decisions(folder)
        for step in manifest.list_steps(place) if past else []:
            last = past[str(len(past))]
            if step > last["to"] and _count(place / str(step), "run") < len(past):
                draft = place / f"{step}.tmp"
                manifest.rename_with_retry(place / str(step), draft)
                manifest.remove_path(draft)

    broadcast_from_first(drop)


def pending_decision(run: Run) -> dict[str, Any] | None:
    """The last rewind, if the run's restored state has not followed it; the record lists all from now on."""
    decisions: dict[str, Any] = broadcast_from_first(lambda: read_decisions(run.folder))
    counted = len(run.facts.get("rewinds", {}))
    run.facts |= {"rewinds": decisions} if decisions else {}
    run.record |= {"rewinds": decisions} if decisions else {}
    return decisions[str(len(decisions))] if len(decisions) > counted else None


def follow_decision(run: Run, decision: Mapping[str, Any], state: TrainState) -> TrainState:
    """The state at `decision["to"]`, changed as decided, and as those before that it is too old to have followed."""
    decisions = run.facts["rewinds"]
    missing = [decisions[str(len(decisions) - i)] for i in range(decision["lost"] + 1)]
    change = Change(
        float(np.prod([entry["lr_factor"] for entry in missing])),
        float(np.prod([entry["clip_factor"] for entry in missing])),
        tuple((entry["jump"][0], entry["jump"][1]) for entry in missing),
        any(entry["reset"] for entry in missing),
    )
    return apply_change(state, run.spec, change)
