"""What a run's record and logbook say was changed on its way: by the guard's rewinds, and by hand."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.train.step.guard import REWARMUP_STEPS

OF_A_PAST = ("guard", "skip", "diverged", "stopped", "stopped_early", "done")  # events that going back undoes


FACTOR = re.compile(r"\blr_factor=([-+.\de]+)")
RESET = "reset=moments"


def followed_decisions(past: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Those decisions that a run's present past has followed: going back by hand undoes what its step didn't know."""
    followed: dict[str, Mapping[str, Any]] = {}
    for number, entry in past.items():
        if entry.get("by_hand"):
            followed = {earlier: one for earlier, one in followed.items() if int(earlier) <= entry["followed"]}
        followed[number] = entry
    return followed


def missing_decisions(past: Mapping[str, Mapping[str, Any]], number: str) -> list[str]:
    """The decisions that the checkpoint of decision `number` had not followed, and that are therefore made again."""
    entry = past[number]
    lost = entry.get("lost", 0)  # of versions that knew no going back by hand: so many before it
    return list(entry.get("missing", [str(int(number) - i) for i in range(lost, 0, -1)]))


def list_changes(record: Mapping[str, Any]) -> list[tuple[int, float, bool]]:
    """(step from which it holds, factor of the LR, whether the moments were reset) of each change, in order of steps.

    A rewind also repeats at its step what later checkpoints knew. [] of an edited record: `checkpoint verify` names it.
    """
    past, by_hand = record.get("rewinds", {}), record.get("changes_by_hand", {})
    try:
        changes = [
            (int(entry["to"]), float(one["lr_factor"]), bool(one["reset"]))
            for number, entry in followed_decisions(past).items()
            for one in (*(past[missing] for missing in missing_decisions(past, number)), entry)
        ]
        changes += [
            (int(entry["step"]), float((FACTOR.search(entry["change"]) or ("", 1.0))[1]), RESET in entry["change"])
            for entry in by_hand.values()
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return sorted(changes, key=lambda change: change[0])


def lr_factors(record: Mapping[str, Any], steps: Sequence[int] | np.ndarray) -> np.ndarray:
    """What the LR of the steps logged as `steps` was multiplied with, beside its schedule."""
    at = np.asarray(steps, np.int64) - 1
    factors, warm = np.ones(at.shape), np.ones(at.shape)
    for step, factor, reset in list_changes(record):
        factors = np.where(at >= step, factors * factor, factors)
        if reset:
            warm = np.where(at >= step, np.minimum(1.0, (at - step + 1) / REWARMUP_STEPS), warm)
    return factors * warm


def present_events(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The logbook without what happened in steps that going back by hand undid."""
    present: list[Mapping[str, Any]] = []
    for event in events:
        if event["kind"] == "back_to" and isinstance(to := event.get("step"), int):
            present = [one for one in present if one["kind"] not in OF_A_PAST or (one.get("step") or 0) <= to]
        present.append(event)
    return present
