"""Run steps again from saved states, on this machine, and compare with the logged bits."""

import dataclasses
import functools
from typing import Any

import jax

from scalelab.config import Static
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.subject import Subject, load_subject
from scalelab.train.step.step import train_step

REPLAYED = 20  # most steps run again after a saved one


def probe_replay(evidence: Evidence) -> dict[str, float]:
    """Run again from each saved step: `replay/STEP` is the relative difference of the loss from the line of that step.

    STEP is the last logged one at most REPLAYED steps on and not after the next saved one. `replay_twice/STEP`: the
    difference of two such runs, where the first differs from the log.
    """
    values: dict[str, float] = {}
    logged = {int(row["step"]): float(row["train_loss"]) for row in evidence.rows}
    saved = sorted(evidence.manifests)
    for step, following in zip(saved, [*saved[1:], evidence.steps], strict=True):
        target = max((s for s in logged if step < s <= min(step + REPLAYED, following)), default=None)
        if target is None:
            continue
        first, expected = _replayed_loss(load_subject(evidence, step), target), logged[target]
        values[f"replay/{target}"] = abs(first - expected) / abs(expected)
        if first != expected:
            again = _replayed_loss(load_subject(evidence, step), target)
            values[f"replay_twice/{target}"] = abs(again - first) / abs(first)
    return values


@functools.cache
def compiled_step(static: Static) -> Any:
    """The training step, compiled once for all probes that take steps again."""
    return jax.jit(functools.partial(train_step, static))


def _replayed_loss(subject: Subject, target: int) -> float:
    """Compute the training loss of step `target` from the subject's state and the closed form of the batches."""
    current, metrics = subject.state, {}
    step = compiled_step(dataclasses.replace(subject.static, layers=False))
    for number in range(subject.step, target):
        current, metrics = step(current, subject.batch(number), subject.h)
    return float(metrics["train_loss"])
