"""Changes by hand: of a run that goes on from its last checkpoint, or goes back to an earlier one.

Going back is a decision as the guard's are (`rewind.py`): on disk in `guard.json` before it acts, so that a run that is
killed at any point of it goes on to the same bits. What the run leaves behind, checkpoints and logs, is kept in its
folder `set_aside/N`. All is refused, if at all, before anything is written.
"""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by, user_code
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput, quote_path
from scalelab.parallel.processes import broadcast_from_first
from scalelab.record import records
from scalelab.record.jsonlines import copy_file
from scalelab.train import ledger
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.lineage import compatibility
from scalelab.train.lineage.facts import config_from_facts
from scalelab.train.resume import handover, rewind
from scalelab.train.resume.change import Change, apply_change, jump_over, refuse_reset
from scalelab.train.run.loop import StartStates
from scalelab.train.run.run import Run
from scalelab.train.run.session import Progress
from scalelab.train.step import guard, program
from scalelab.train.step.state import TrainState


class ByHand(NamedTuple):
    """What `scalelab train` changes where a run goes on. `skip`: the first and the last batch left out.

    `back_to`: the saved step from which it goes on; None: its last one.
    """

    lr_factor: float = 1.0
    skip: tuple[int, int] | None = None
    reset: bool = False
    clip_norm: float | None = None
    back_to: int | None = None

    def text(self) -> str:
        """The change in words."""
        parts = [f"back_to={self.back_to}"] if self.back_to is not None else []
        parts += [f"lr_factor={self.lr_factor:g}"] if self.lr_factor != 1 else []
        parts += [f"clip_norm={self.clip_norm:g}"] if self.clip_norm is not None else []
        parts += [f"skip_batches={self.skip[0]}..{self.skip[1]}"] if self.skip else []
        return ", ".join([*parts, *(["reset=moments"] if self.reset else [])])

    def change(self, state: TrainState) -> Change:
        """The change of a run that goes on from `state`. BadInput where it is past the batches, or skips them."""
        jumps = (jump_over(state, *self.skip),) if self.skip else ()
        return Change(self.lr_factor, 1.0, jumps, self.reset, self.clip_norm)


def change_start(run: Run, start: StartStates | None, asked: ByHand, progress: Progress) -> StartStates:
    """`start`, changed as asked; a change that the run has made already is not made again. BadInput without a start."""
    if start is None:
        raise BadInput(f"{run.folder} has no checkpoint: only a run that goes on can be changed by hand")
    step, (state,) = start
    entries = run.facts.get("changes_by_hand", {})
    for entry in entries.values():
        if entry["change"] == asked.text():
            progress({"note": f"{run.name}: {asked.text()} was made at step {entry['step']}; it is not made again"})
            return start
    state = apply_change(state, run.spec, asked.change(state))
    entry = {"step": step, "change": asked.text()}
    run.facts["changes_by_hand"] = run.record["changes_by_hand"] = entries | {str(len(entries) + 1): entry}
    run.event("config_change", step, f"by hand: {asked.text()}")
    return step, [state]


def check_step(folder: pathlib.Path, step: int) -> None:
    """Raise BadInput unless the run in `folder` can go back to `step`; only files are looked at."""
    asked = f"--back-to={step}: {folder}"
    if not (folder / "config.json").exists():
        raise BadInput(f"--back-to={step}: {str(folder)!r} is not a run folder: it has no config.json")
    if "pack" in records.read_record(folder):
        raise BadInput(
            f"{asked} is a trial of a pack, whose checkpoints its neighbours share; nearest: a run on its weights, "
            f"--init-from={quote_path(folder)}@{step}"
        )
    steps = manifest.list_steps(folder / "checkpoints")
    if step not in steps:
        near = min(steps, key=lambda other: abs(other - step), default=None)
        hint = "" if near is None else f"; nearest: --back-to={near}"
        raise BadInput(f"{asked} has no checkpoint of step {step}; it has {steps or 'none'}{hint}")
    if problems := manifest.find_step_problems(folder / "checkpoints" / str(step)):
        others = [other for other in steps if other != step]
        raise BadInput(f"{asked} has that step damaged: {problems[0]}; it also has {others or 'none'}")


def plan_config(folder: pathlib.Path, step: int, overrides: Mapping[str, Any]) -> ConfigDict:
    """The resolved config of the run in `folder`, which goes back to `step`, with overrides. BadInput as `check_step`.

    The run's own code is not trusted for standing in its files; what an override names is.
    """
    check_step(folder, step)
    base = config_from_facts({"config": records.read_config(folder)})
    if "train.steps" in overrides:
        schedule_steps.forget_derived_steps(base)
    config = config_lib.override(base, overrides, set_by.COMMAND_LINE)
    user_code.trust_names(*overrides.values())
    return config_lib.resolve(config, stored=True)


def went_back(folder: pathlib.Path, asked: ByHand) -> int | None:
    """The step at which the run's last going back by hand was this very one; None if it was another, or none."""
    by_hand = [entry for entry in rewind.read_decisions(folder).values() if entry.get("by_hand")]
    return by_hand[-1]["step"] if by_hand and by_hand[-1]["by_hand"] == asked.text() else None


def go_back(run: Run, asked: ByHand, allow: Collection[str], progress: Progress) -> None:
    """Decide that the run goes back, write it down, and set aside what it leaves. BadInput before anything is written.

    What restores the run's last checkpoint then follows the decision (`rewind.follow_decision`).
    """
    to, place = asked.back_to, run.folder / "checkpoints"
    assert to is not None
    if to >= run.config.train.steps:
        raise BadInput(f"--back-to={to}: no step of {run.folder} follows it; nearest: --config.train.steps={to + 1}")
    facts = broadcast_from_first(lambda: manifest.read_manifest(place / str(to))["facts"]["run"])
    compatibility.check_continuation(str(place / str(to)), facts, run.facts, allow)
    state = _restore_memory(run, to)
    change = asked.change(state)
    if asked != ByHand(back_to=to):
        if asked.reset:
            refuse_reset(run.config.optim.name)
        apply_change(state, run.spec, dataclasses.replace(change, reset=False))  # a reset needs the weights
    entry = broadcast_from_first(lambda: _write_decision(run, asked, change, facts))
    broadcast_from_first(lambda: settle(run.folder))
    progress({"warning": f"{run.name}: {entry}"})


def _restore_memory(run: Run, step: int) -> TrainState:
    """The guard's memory of a saved step, in a state that holds nothing else."""
    (like,) = program.restore_targets(run.spec.static, 1, "turn")
    checkpoints = Checkpoints(run.folder / "checkpoints")
    content = broadcast_from_first(lambda: manifest.read_manifest(checkpoints.folder / str(step)))
    fields = handover.select_restorable_fields(content, "run", like, run.config)
    fields = fields._asdict() if isinstance(fields, TrainState) else fields
    wanted = {name: fields[name] for name in ("step", "guard") if jax.tree.leaves(fields.get(name, ()))}
    restored = {"guard": guard.init_guard(run.spec.static.guard)} | checkpoints.restore(step, {"run": wanted})["run"]
    return TrainState(restored["step"], (), (), restored["step"], restored["step"], guard=restored["guard"])


def _write_decision(run: Run, asked: ByHand, change: Change, facts: Mapping[str, Any]) -> str:
    """Write the decision into `guard.json` and the logbook; returns it in words."""
    past, to = rewind.read_decisions(run.folder), asked.back_to or 0
    number, at = str(len(past) + 1), _last_step(run.folder)
    lost = ledger.count_between(run.spec.stretches, to, at, run.record["flops_per_token"])
    entry = {
        "step": at, "why": f"by hand: {asked.text()}", "by_hand": asked.text(), "to": to,
        "jump": list(change.jumps[0]) if change.jumps else None, "batches": list(asked.skip) if asked.skip else None,
        "lr_factor": change.lr_factor, "clip_factor": 1.0, "clip_norm": change.clip_norm, "reset": change.reset,
        "followed": len(facts.get("rewinds", {})), "missing": [], "discarded": lost,
    }  # fmt: skip
    records.write_json(run.folder / rewind.FILE, {"rewinds": past | {number: entry}})
    left = [step for step in manifest.list_steps(run.folder / "checkpoints") if step > to]
    aside = rewind.aside_folder(run.folder, len(past) + 1)
    text = f"{entry['why']}, from step {at}; what came after step {to} is in {aside}: logs"
    text += f", and the checkpoints {', '.join(map(str, left))}" if left else ""
    fields = {"from": at, "to": to, "cost_steps": at - to, "set_aside": str(aside), "steps": left}
    records.write_event(run.folder, "back_to", to, text, **fields)
    return text


def _last_step(folder: pathlib.Path) -> int:
    """The last step of which the run's record, logs or checkpoints know."""
    logged = max((line["step"] for line in records.read_metrics(folder)), default=0)
    saved = manifest.list_steps(folder / "checkpoints")
    return max(records.read_record(folder).get("steps", 0), logged, *saved)


def settle(folder: pathlib.Path) -> None:
    """Do what a decision by hand that the run has not followed yet asks of its files; again after a kill."""
    past, record = rewind.read_decisions(folder), records.read_record(folder)
    if len(record.get("rewinds", {})) >= len(past) or not past[str(len(past))].get("by_hand"):
        return
    aside = rewind.aside_folder(folder, len(past))
    if not aside.exists():
        draft = aside.with_name(f"{aside.name}.tmp")
        manifest.remove_path(draft)
        draft.mkdir(parents=True)
        for path in (folder / "config.json", folder / "record.json", *records.saved_log_paths(folder)):
            if path.exists():
                copy_file(path, draft / path.name)
        os.replace(draft, aside)
    rewind.drop_abandoned_steps(folder)
    if record.get("status", "running") != "running":
        records.write_json(folder / "record.json", record | {"status": "running", "steps": past[str(len(past))]["to"]})
