"""Going back: where a run goes on from after the guard's alarms, and what it does otherwise from there on.

A decision is on disk (`guard.json` of the run, and an event) before it acts, and a checkpoint's facts hold the
decisions that its past has followed. So a run that is killed at any point of a rewind resumes to the same bits: what a
checkpoint lacks of `guard.json` is done when it is restored. The first rewind skips the batches around the alarm; the
second within 2,000 steps also lowers LR and clip, as does the first one if the alarm came in the first 64 steps; the
third resets the optimizer's moments too. Then the run ends. The state of step 0 is saved for alarms before the first
save. `by_hand.py` writes decisions of the user into the same file.

PaLM (Chowdhery et al. 2022, section 5.1) went back 100 steps and skipped 200 to 500 batches; OPT lowered LR and clip.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.errors import quote_path
from scalelab.parallel.processes import broadcast_from_first, is_first_process
from scalelab.record import records
from scalelab.train import ledger
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage.changes import followed_decisions, missing_decisions
from scalelab.train.resume.change import Change, apply_change, can_reset
from scalelab.train.run.alarms import Call
from scalelab.train.run.run import Run
from scalelab.train.step import guard
from scalelab.train.step.state import TrainState

MOST_REWINDS = 3
MARGIN, LEAST, MOST = 100, 200, 500  # steps before and after the flags, and how many batches are skipped
ESCALATION_STEPS = 2000
LR_FACTOR, CLIP_FACTOR = 0.7, 0.5
FILE = "guard.json"
ASIDE = "set_aside"  # folder in a run of what it left behind when it went back by hand


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
    skipped = "batches {} to {} skipped".format(*decision["batches"]) if decision["batches"] else "no batch skipped"
    text = f"{call.why}: back to step {decision['to']}, {skipped}"
    text += f", LR x {decision['lr_factor']:g}, clip x {decision['clip_factor']:g}" if decision["lr_factor"] < 1 else ""
    text += ", moments reset" if decision["reset"] else ""
    fields = {"signal": call.why, "action": "rewind", "from": call.step, "to": decision["to"]}
    run.event(
        "guard",
        call.step,
        text,
        **fields,
        batches=decision["batches"],
        cost_steps=call.step - decision["to"],
        number=len(decisions),
    )
    return True


def _plan_rewind(run: Run, call: Call, checkpoints: pathlib.Path, name: str) -> dict[str, Any]:
    """The decision, or {"why": why there is none}."""
    past = read_decisions(run.folder)
    followed = followed_decisions(past)
    healthy = healthy_steps(checkpoints, name, past)
    before = [step for step in healthy if step <= call.first_flag - MARGIN] or [
        step for step in healthy[:1] if step <= call.first_flag
    ]
    own = [entry for entry in _since_last_by_hand(followed) if not entry.get("by_hand")]
    if len(own) >= MOST_REWINDS or not before:
        cause = f"after {len(own)} rewinds" if before else f"no healthy checkpoint before step {call.first_flag + 1}"
        last = before[-1] if before else None
        way = (
            f"; step {last} is healthy: scalelab train --init-from={quote_path(run.folder)}@{last} with another LR or "
            "data goes on"
        )
        return {"why": f"the guard: {call.why}, {cause}{way if before else ''}"}
    to = before[-1]
    recent = [entry for entry in own if call.step - entry["step"] <= ESCALATION_STEPS]
    severity = 1 + len(recent)
    slower = severity > 1 or call.first_flag < guard.EARLY_STEPS
    flags = call.early - _facts(checkpoints / str(to), name).get("alarms", {}).get("early", 0)
    lowered = max(guard.SLOWER**flags, guard.SLOWEST)  # in vain, by the guard in the step since then
    first = max(call.first_flag - MARGIN, to)
    last = min(max(call.last_flag + MARGIN, first + LEAST - 1), first + MOST - 1)
    missing = [number for number in followed if int(number) > count_decisions(checkpoints / str(to), name)]
    shift = sum(n for at, n in filter(None, (entry["jump"] for entry in followed.values())) if at <= first)
    n, blamed = (0, []) if call.why == "early" else (last - first + 1, [first + shift, last + shift])
    return {
        "step": call.step, "why": call.why, "flags": [call.first_flag, call.last_flag], "to": to, "severity": severity,
        "jump": [first, n], "batches": blamed,  # no batch is to blame for a start that fails
        "lr_factor": LR_FACTOR * lowered if slower else 1.0, "clip_factor": CLIP_FACTOR if slower else 1.0,
        "reset": severity > 2 and can_reset(run.config.optim.name), "missing": missing,
    }  # fmt: skip


def _since_last_by_hand(followed: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    entries = list(followed.values())
    last = max((i for i, entry in enumerate(entries) if entry.get("by_hand")), default=-1)
    return entries[last + 1 :]


def healthy_steps(checkpoints: pathlib.Path, name: str, past: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Intact steps of the run's present past, saved without an alarm."""
    healthy = []
    for step in manifest.list_steps(checkpoints):
        place = checkpoints / str(step)
        if manifest.find_step_problems(place, contents=False):
            continue
        content = manifest.read_manifest(place)
        undone = [entry["to"] for number, entry in past.items() if int(number) > count_decisions(place, name)]
        if content.get("health", {}).get(name, manifest.HEALTHY) == manifest.HEALTHY and step <= min([step, *undone]):
            healthy.append(step)
    return healthy


def count_decisions(place: pathlib.Path, name: str) -> int:
    """How many rewinds the past of a saved step has followed."""
    return len(_facts(place, name).get("rewinds", {}))


def _facts(place: pathlib.Path, name: str) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = manifest.read_manifest(place)["facts"][name]
    return facts


def drop_abandoned_steps(folder: pathlib.Path) -> None:
    """Delete the checkpoints of a single run that its last rewind left behind; going back by hand sets them aside."""
    place = folder / "checkpoints"

    def drop() -> None:
        past = read_decisions(folder)
        for step in manifest.list_steps(place) if past else []:
            last = past[str(len(past))]
            if step <= last["to"] or count_decisions(place / str(step), "run") >= len(past):
                continue
            if last.get("by_hand"):
                aside = aside_folder(folder, len(past)) / "checkpoints"
                aside.mkdir(parents=True, exist_ok=True)
                manifest.rename_with_retry(place / str(step), aside / str(step))
            else:
                draft = place / f"{step}.tmp"
                manifest.rename_with_retry(place / str(step), draft)
                manifest.remove_path(draft)

    broadcast_from_first(drop)


def aside_folder(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Where the run keeps what it left behind at its decision `number`: a folder that reads as a run."""
    return folder / ASIDE / str(number)


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
    for number in missing_decisions(decisions, str(len(decisions))):
        state = apply_change(state, run.spec, _change_of(decisions[number]))
    return apply_change(state, run.spec, _change_of(decision))


def _change_of(decision: Mapping[str, Any]) -> Change:
    jump = decision["jump"]
    return Change(
        decision["lr_factor"],
        decision["clip_factor"],
        ((jump[0], jump[1]),) if jump and jump[1] else (),
        decision["reset"],
        decision.get("clip_norm"),
    )
