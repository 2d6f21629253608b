"""Run steps again from saved states, on this machine, and compare with the logged bits."""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves.saved import read_saved_steps
from scalelab.diagnose.probes.subject import Subject, load_subject
from scalelab.model.declare import named_leaves
from scalelab.train.step.state import TrainState
from scalelab.train.step.step import jit_train_step

REPLAYED = 20  # most steps run again after a saved one, if the next saved one is farther than
NEAR = 400  # steps, or SECONDS
SECONDS = 60.0
SAME = 1e-4  # relative difference of a replayed number; the same program gives the same bits
LOGGED = ("train_loss", "grad_norm", "update_norm", "param_norm", "lr")  # metrics of a step that are compared


def probe_replay(evidence: Evidence) -> dict[str, Any]:
    """Run again from each saved step: `replay/STEP` is the relative difference of the loss from the line of that step.

    STEP is the last logged one at most REPLAYED steps on and not after the next saved one. `replay_twice/STEP`: the
    difference of two such runs, where the first differs from the log. Where the next saved step is near, also
    `replay_state/STEP/NAME`: of each array that it holds, the relative difference from that of the replay; and
    `replay_line/STEP`: the first line until then that differs, {step, and by metric (replayed, logged)}.
    """
    values: dict[str, Any] = {}
    logged = {int(row["step"]): row for row in evidence.rows}
    for step, target, following, near in _list_replays(evidence):
        start, expected = load_subject(evidence, step), float(logged[target]["train_loss"])
        lines, end = _replay(start, following if near else target)
        first = lines[target]["train_loss"]
        values[f"replay/{target}"] = abs(first - expected) / abs(expected)
        if first != expected:
            again = _replay(load_subject(evidence, step), target)[0][target]["train_loss"]
            values[f"replay_twice/{target}"] = abs(again - first) / abs(first)
        if near and int(end.step) == following:
            values |= _compare(evidence, following, end, lines)
    return values


def count_replayed(evidence: Evidence) -> int:
    """The number of steps that `probe_replay` runs again."""
    return sum((following if near else target) - step for step, target, following, near in _list_replays(evidence))


def _list_replays(evidence: Evidence) -> Iterator[tuple[int, int, int, bool]]:
    """(saved step, the line its replay is held to, the next saved step or the last, whether the replay reaches it)."""
    logged, saved = [int(row["step"]) for row in evidence.rows], sorted(evidence.manifests)
    for step, following in zip(saved, [*saved[1:], evidence.steps], strict=True):
        target = max((s for s in logged if step < s <= min(step + REPLAYED, following)), default=None)
        if target is not None:
            near = following in saved[1:] and following - step <= NEAR and _is_repeatable(evidence, step, following)
            yield step, target, following, near


def _is_repeatable(evidence: Evidence, step: int, following: int) -> bool:
    """Whether the run went from one saved step to the next as the config says, on one device of this kind.

    Others add up in another order; before a changed config, and across a rewind, other steps were taken.
    """
    if any(int(event.get("step") or 0) > step for event in evidence.kinds("config_change", "branch", "fallback")):
        return False
    rewinds = [event for event in evidence.kinds("guard") if event.get("action") == "rewind"]
    if any(int(event.get("step") or 0) > step for event in [*rewinds, *evidence.kinds("back_to")]):
        return False
    devices = evidence.record.get("mesh", {}).get("devices", 1)
    return devices == 1 and evidence.record.get("device") == jax.devices()[0].device_kind


def _compare(evidence: Evidence, step: int, end: TrainState, lines: Mapping[int, Mapping[str, float]]) -> Any:
    """Compare the replayed state of a saved step with the saved one, and the lines up to it with those logged."""
    saved, _ = read_saved_steps(evidence)
    arrays = next((each.arrays for each in saved if each.step == step), {})
    values: dict[str, Any] = {}
    for name, x in named_leaves(end).items():
        if name in arrays and not name.startswith("guard.") and np.issubdtype(np.asarray(x).dtype, np.floating):
            ours, theirs = np.asarray(x, np.float64), arrays[name].astype(np.float64)
            size = max(float(np.linalg.norm(ours)), 1e-30)
            values[f"replay_state/{step}/{name}"] = float(np.linalg.norm(theirs - ours)) / size
    for row in evidence.rows:
        pairs = {
            name: (lines[row["step"]][name], float(row[name]))
            for name in LOGGED
            if row["step"] in lines and row.get(name) is not None and np.isfinite(lines[row["step"]].get(name, np.nan))
        }
        if any(abs(ours - theirs) > SAME * abs(ours) for ours, theirs in pairs.values()):
            return values | {f"replay_line/{step}": {"step": row["step"]} | pairs}
    return values


def _replay(subject: Subject, last: int) -> tuple[dict[int, dict[str, float]], TrainState]:
    """Take the steps up to `last` again: (the metrics of each by its number, the state after them)."""
    current, lines, began = subject.state, dict[int, dict[str, float]](), time.monotonic()
    step = jit_train_step(dataclasses.replace(subject.static, layers=False))
    for number in range(subject.step, last):
        current, metrics = step(current, subject.batch(number), subject.h)
        lines[number + 1] = {name: float(metrics[name]) for name in LOGGED if name in metrics}
        if number - subject.step == REPLAYED:
            began = time.monotonic()  # without compiling
        if number - subject.step > REPLAYED and time.monotonic() - began > SECONDS:
            break
    return lines, current
