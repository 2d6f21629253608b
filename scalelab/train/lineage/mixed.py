"""Runs whose identifying values changed on the way: what changed at which step, kept with every checkpoint and in the
record.

Such a run's loss follows from no one config, so a law is not fitted to it. Changes that leave the steps taken as they
were (more steps of a constant schedule, a decay planned before it begins) mix nothing.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab.config import mixture_text
from scalelab.record.identity import is_identity_key, is_passive_guard
from scalelab.train.lineage import extend
from scalelab.train.lineage.facts import diff_facts, flatten_facts

ChangeEntries = dict[
    str, dict[str, Any]
]  # by a number: step, changes {key: "before -> after"}, fresh (what began anew, or "")
HARMLESS_KEYS = ("eval.every_steps",)  # identifying, but neither a step nor a loss that is measured depends on it


def merge_change_entries(
    step: int, saved: Mapping[str, Any], new: Mapping[str, Any], config: ConfigDict, fresh: Collection[str]
) -> ChangeEntries:
    """What is known of a run's past and what changes now, where it goes on at `step` from facts `saved` under facts
    `new`.
    """
    former = dict(saved.get("mixed", {}))
    changed = {key: pair for key, pair in diff_facts(saved, new).items() if _changes_result(key)}
    if all(is_passive_guard(flatten_facts(facts)) for facts in (saved, new)):
        changed = {key: pair for key, pair in changed.items() if not key.startswith("guard.")}
    planned = {key for key in changed if _is_plan(key)}
    if planned and _same_past(step, saved, config):
        changed = {key: pair for key, pair in changed.items() if key not in planned}
    if "data.mixture" in changed and mixture_text.same_mixture_before(*changed["data.mixture"], step):
        del changed["data.mixture"]
    if not changed:
        return former
    described = {key: f"{before} -> {after}" for key, (before, after) in changed.items()}
    return former | {str(len(former) + 1): {"step": step, "changes": described, "fresh": ", ".join(fresh)}}


def _changes_result(key: str) -> bool:
    return is_identity_key(key) and key not in HARMLESS_KEYS


def _is_plan(key: str) -> bool:
    """Whether a key acts through the schedules' curves alone; these may be planned anew for steps to come."""
    return key == extend.STEPS_KEY or (key.startswith("schedule.") and not key.startswith("schedule.batch_"))


def _same_past(step: int, saved: Mapping[str, Any], config: ConfigDict) -> bool:
    """Whether the present schedules give the steps before `step` the values they had."""
    old = extend.planned_config(saved)
    new = old.copy_and_resolve_references()
    with new.unlocked(), new.ignore_type():
        new.schedule.update(config.schedule)
        new.train.steps = config.train.steps
    return not extend.first_schedule_difference(old, new, step) and not extend.optimizer_steps_difference(old, new)
