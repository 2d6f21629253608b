"""Run steps again from saved states, on this machine, and compare with the logged bits."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
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
NUDGE = 2.0**-22  # relative change of each weight, of either sign: what sums in another order leave in fp32
ROUNDED = 10.0  # times what a nudge changes; differences up to there are rounding's
DIFFERS = 1e-3  # relative difference of an array from that of a replay; the same program gives the same bits
LOGGED = ("train_loss", "grad_norm", "update_norm", "param_norm", "lr")  # metrics of a step that are compared


def probe_replay(evidence: Evidence) -> dict[str, Any]:
    """Run again from each saved step: `replay/STEP` is the relative difference of the loss from the line of that step.

    STEP is the last logged one at most REPLAYED steps on and not after the next saved one. `replay_twice/STEP`: the
    difference of two such runs, where the first differs from the log. Where the next saved step is near, also
    `replay_state/STEP/NAME`: of each array that it holds, the relative difference from that of the replay; and
    `replay_line/STEP`: the first line until then that differs, {step, and by metric (replayed, logged)}. Where
    something differs, weights are nudged by rounding and the steps taken once more: `replay_rounded/STEP[/NAME]` is
    what that changes, of a loss or array, where it explains the difference. `replay_alike/STEP`: where the optimizer's
    state differs and the weights do not, by how much the next steps from both differ, of a leaf's change.
    """
    values: dict[str, Any] = {}
    logged = {int(row["step"]): row for row in evidence.rows}
    for step, target, following, near in _list_replays(evidence):
        start, expected = load_subject(evidence, step), float(logged[target]["train_loss"])
        lines, end = _replay(start, last := following if near else target)
        nudged = functools.cache(functools.partial(_replay_nudged, evidence, step, last))
        first = lines[target]["train_loss"]
        values[f"replay/{target}"] = abs(first - expected) / abs(expected)
        if first != expected:
            again = _replay(load_subject(evidence, step), target)[0][target]["train_loss"]
            values[f"replay_twice/{target}"] = abs(again - first) / abs(first)
        if (difference := values[f"replay/{target}"]) > SAME and target in nudged()[0]:
            by_rounding = abs(nudged()[0][target]["train_loss"] - first) / abs(first)
            values |= _explain(f"replay_rounded/{target}", difference, by_rounding)
        if near and int(end.step) == following:
            values |= _compare(evidence, following, end, lines, nudged)
            apart = {key.split("/", 2)[2].partition(".")[0] for key in _differing(values, following)}
            if apart == {"opt_state"}:
                values[f"replay_alike/{following}"] = _compare_next(load_subject(evidence, following), end)
    return values


def _differing(values: Mapping[str, Any], step: int) -> list[str]:
    """The measurements of arrays of a saved step that differ from those of a replay."""
    prefix = f"replay_state/{step}/"
    return [key for key, x in values.items() if key.startswith(prefix) and not x <= DIFFERS]


def _compare_next(saved: Subject, end: TrainState) -> float:
    """The largest difference of a leaf's change over the next steps from a saved state and a replayed one, over that
    change: optimizer states that are other numbers may do the same (bases in another order, or of other signs).
    """
    last = saved.step + REPLAYED
    ends = [_replay(saved._replace(state=state), last)[1] for state in (saved.state, end)]
    before, one, other = (named_leaves(state.params) for state in (end, *ends))
    changes = [
        [np.asarray(x[name], np.float64) - np.asarray(before[name], np.float64) for x in (one, other)]
        for name in before
    ]
    sizes = [float(np.linalg.norm(right)) for _, right in changes]
    if not max(sizes, default=0.0) > 0:
        return float("inf")  # at an LR of 0 no state does anything
    pairs = zip(changes, sizes, strict=True)
    return max(float(np.linalg.norm(ours - right)) / size for (ours, right), size in pairs if size > 0)


def _replay_nudged(evidence: Evidence, step: int, last: int) -> tuple[dict[int, dict[str, float]], TrainState]:
    """Replay from weights of which each in fp32 is changed by rounding, up or down."""
    subject = load_subject(evidence, step)
    leaves, tree = jax.tree.flatten(subject.state.params)
    keys = jax.random.split(jax.random.key(step), len(leaves))

    def nudge(x: jax.Array, key: jax.Array) -> jax.Array:
        return x * (1 + NUDGE * jax.random.rademacher(key, x.shape, x.dtype)) if x.dtype == jnp.float32 else x

    params = jax.tree.unflatten(tree, [nudge(x, key) for x, key in zip(leaves, keys, strict=True)])
    return _replay(subject._replace(state=subject.state._replace(params=params)), last)


def count_replayed(evidence: Evidence) -> int:
    """The number of steps that `probe_replay` runs again."""
    return sum((following if near else target) - step for step, target, following, near in _list_replays(evidence))


def _list_replays(evidence: Evidence) -> Iterator[tuple[int, int, int, bool]]:
    """(saved step, the line its replay is held to, the next saved step or the last, whether the replay reaches it)."""
    logged, saved = [int(row["step"]) for row in evidence.rows], evidence.replayable
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


def _compare(
    evidence: Evidence,
    step: int,
    end: TrainState,
    lines: Mapping[int, Mapping[str, float]],
    nudged: Callable[[], tuple[Mapping[int, Mapping[str, float]], TrainState]],
) -> dict[str, Any]:
    """Compare the replayed state of a saved step with the saved one, and the lines up to it with those logged.

    `nudged` gives lines and state of the steps from nudged weights; it is asked where something differs.
    """
    saved, _ = read_saved_steps(evidence)
    arrays = next((each.arrays for each in saved if each.step == step), {})
    values: dict[str, Any] = {}
    for name, x in named_leaves(end).items():
        if name in arrays and not name.startswith("guard.") and np.issubdtype(np.asarray(x).dtype, np.floating):
            difference = _distance(arrays[name], x)
            values[f"replay_state/{step}/{name}"] = difference
            if difference > DIFFERS and (by_rounding := _distance(named_leaves(nudged()[1])[name], x)) > 0:
                values |= _explain(f"replay_rounded/{step}/{name}", difference, by_rounding)
    for row in evidence.rows:
        at = int(row["step"])
        if at not in lines:
            continue
        pairs = {
            name: (ours, float(row[name]))
            for name, ours in lines[at].items()
            if row.get(name) is not None and np.isfinite(ours)
        }
        if any(abs(ours - theirs) > SAME * abs(ours) for ours, theirs in pairs.values()):
            beside = nudged()[0].get(at, {})
            if any(
                abs(ours - theirs) > max(SAME * abs(ours), ROUNDED * abs(beside.get(name, ours) - ours))
                for name, (ours, theirs) in pairs.items()
            ):
                return values | {f"replay_line/{step}": {"step": at} | pairs}
    return values


def _distance(x: Any, right: Any) -> float:
    """The norm of a difference over that of what is right."""
    ours, theirs = np.asarray(right, np.float64), np.asarray(x).astype(np.float64)
    return float(np.linalg.norm(theirs - ours)) / max(float(np.linalg.norm(ours)), 1e-30)


def _explain(key: str, difference: float, by_rounding: float) -> dict[str, float]:
    """{key: what rounding changes} where that is as much as the difference."""
    return {key: by_rounding} if difference <= ROUNDED * by_rounding else {}


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
