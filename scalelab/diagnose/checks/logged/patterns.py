"""Name how logged learning rates differ from the declared schedule: offset, factor, unit of counting, restart, lengths.

Each pattern is a closed form with at most one unknown, which is solved on one line and must then hold at all others.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from scalelab.diagnose.checks.logged import formulas
from scalelab.diagnose.evidence import Evidence
from scalelab.errors import BadInput
from scalelab.optim import schedules

SAME_LR = 1e-5  # of the peak: fp32 rounds to 1e-7, and cosines of other devices differ by some 3e-7
SAME_FACTOR = 1e-4
MOST_OFFSET = 10  # steps
COUNTED_BY = 65  # largest number of units in a step that is tried
FEWEST = 3  # lines that an unknown is solved and tested on
DECAY_KEYS = ("schedule.decay_steps", "train.steps", "schedule.fall_share")
STEP_WORDS = "let the step ask the schedule with its own number, from 0"


class Pattern(NamedTuple):
    """What the logged rates are, and what to do in words."""

    text: str
    knob: str


Curve = Callable[[np.ndarray, dict[str, Any]], np.ndarray]  # LR at steps (from 0) of the config with other values


def name_pattern(
    evidence: Evidence, steps: np.ndarray, values: np.ndarray, planned: np.ndarray, restarts: Sequence[int]
) -> Pattern | None:
    """Name the pattern of rates `values` logged after `steps`, all unlike `planned`; None without a known one."""
    peak = max(float(np.max(planned, initial=0.0)), float(np.max(np.abs(values))), 1e-30)
    tests: list[Iterator[Pattern]] = [_factors(evidence, values, planned)]
    if (evidence.folder / "config.json").exists():
        warmup = int(evidence.values["schedule.warmup_steps"] or 0)
        curve = functools.partial(_curve, evidence.values, evidence.config)
        fits = functools.partial(_fits, values, SAME_LR * peak)
        tests += [_offsets(curve, fits, steps, restarts, warmup), _units(evidence, curve, fits, steps)]
        tests.append(_constant(values))
        if ":" not in evidence.values["schedule.name"]:
            tests.append(_lengths(evidence, curve, fits, steps, values))
    else:
        tests.append(_constant(values))
    return next((pattern for test in tests for pattern in test), None)


def _curve(values: Mapping[str, Any], config: ConfigDict, steps: np.ndarray, changes: Mapping[str, Any]) -> np.ndarray:
    by_formula = formulas.compute_rates({**values, **changes}, np.maximum(steps, 0))
    if by_formula is not None:
        return by_formula
    config = config.copy_and_resolve_references()
    with config.unlocked(), config.ignore_type():
        for key, value in changes.items():
            group, name = key.split(".")
            config[group][name] = value
    clipped = np.clip(steps, 0, 2**31 - 1)
    return np.asarray(schedules.schedule_curves(config, clipped)["lr"], float)


def _fits(values: np.ndarray, tolerance: float, expected: np.ndarray) -> bool:
    return bool(np.all(np.abs(values - expected) <= tolerance))


def _factors(evidence: Evidence, values: np.ndarray, planned: np.ndarray) -> Iterator[Pattern]:
    good = planned > 0
    if good.sum() < FEWEST or np.any(values[~good] != 0):
        return
    factors = values[good] / planned[good]
    factor = float(np.median(factors))
    if np.max(np.abs(factors - factor)) <= SAME_FACTOR * abs(factor) and np.ptp(planned[good]) > 0:
        known = _named_factor(evidence, factor)
        yield Pattern(
            f"it is {factor:.4g} times the schedule's at each{known}", f"leave out the factor {factor:.4g} on the LR"
        )


def _named_factor(evidence: Evidence, factor: float) -> str:
    """Name a factor that is a number of the run, or its root."""
    names = {"train.accumulate": "micro-batches a step", "train.global_batch": "sequences a step"}
    numbers = {text: float(evidence.values[key]) for key, text in names.items()}
    numbers["devices"] = float(evidence.record.get("mesh", {}).get("devices", 1))
    for text, number in numbers.items():
        for power, word in ((1, ""), (-1, "one over "), (0.5, "the root of "), (-0.5, "one over the root of ")):
            if number > 1 and math.isclose(factor, number**power, rel_tol=SAME_FACTOR):
                return f", {word}the {number:g} {text}"
    return ""


def _constant(values: np.ndarray) -> Iterator[Pattern]:
    if len(values) >= FEWEST and np.ptp(values) <= 1e-6 * abs(values[0]):
        yield Pattern(f"it is constant there, {values[0]:.4g}", STEP_WORDS)


def _offsets(
    curve: Curve, fits: Callable[[np.ndarray], bool], steps: np.ndarray, restarts: Sequence[int], warmup: int
) -> Iterator[Pattern]:
    for restart in restarts:
        if restart > 0 and steps[0] > restart and fits(curve(steps - 1 - restart, {})):
            text = f"it is the schedule's from step 0 again since the restart of step {restart}"
            yield Pattern(text, "restore the number of the step with the checkpoint")
        warm = (steps - restart) / max(float(warmup), 1.0)
        if steps[0] > restart and fits(curve(steps - 1, {}) * np.clip(warm, 0.0, 1.0)):
            text = f"it is the schedule's times a second warm-up of {warmup} steps since the restart of step {restart}"
            yield Pattern(text, "warm up once: by the number of the step, not by the steps since the restart")
    for offset in sorted(range(-MOST_OFFSET, MOST_OFFSET + 1), key=abs):
        if offset and fits(curve(steps - 1 + offset, {})):
            side = "ahead of" if offset > 0 else "behind"
            yield Pattern(f"it is off by {abs(offset)}: the schedule {abs(offset)} step(s) {side} it", STEP_WORDS)


def _units(
    evidence: Evidence, curve: Curve, fits: Callable[[np.ndarray], bool], steps: np.ndarray
) -> Iterator[Pattern]:
    accumulate, batch = (int(evidence.values[f"train.{key}"]) for key in ("accumulate", "global_batch"))
    for k in sorted(
        {*range(2, COUNTED_BY), *(n for n in (accumulate, batch) if n > 1)}, key=lambda k: (k != accumulate, k)
    ):
        unit = "micro-batches" if k == accumulate else f"{k} units a step"
        for extra in (0, k - 1, k):
            if fits(curve(k * (steps - 1) + extra, {})):
                yield Pattern(
                    f"it is the schedule's at {k} x the step: counted in {unit}",
                    "count the schedule in optimizer steps, not in micro-batches",
                )
        if fits(curve((steps - 1) // k, {})):
            yield Pattern(f"it is the schedule's at the step / {k}", "count the schedule in optimizer steps")
        if fits(curve((steps - 1) // k * k, {})):
            yield Pattern(f"it is stairs: the schedule's of each {k}th step, held until the next", STEP_WORDS)


def _lengths(
    evidence: Evidence, curve: Curve, fits: Callable[[np.ndarray], bool], steps: np.ndarray, values: np.ndarray
) -> Iterator[Pattern]:
    """Try another warm-up, another number of steps, another final share, another decay: each solved on one line."""
    if len(steps) < FEWEST:
        return
    at, warmup = steps - 1, int(evidence.values["schedule.warmup_steps"] or 0)
    peak = float(evidence.values["optim.peak_lr"])
    solved = [round(peak * step / value) for step, value in zip(steps[:2], values[:2], strict=True) if 0 < value < peak]
    warmups = [n for n in dict.fromkeys([0, 1, *solved]) if n != warmup]
    changes: list[dict[str, Any]] = [{"schedule.warmup_steps": n} for n in warmups]
    changes += [{"schedule.final_share": share} for share in _final_share(curve, at, values)]
    for key in ("train.steps", "schedule.decay_steps"):
        changes += [{key: n} for n in _whole_number(curve, at, values, key, int(evidence.values[key] or 0))]
    names = [n for n in (*schedules.SCHEDULES, "constant", "wsd") if n != evidence.values["schedule.name"]]
    changes += [{"schedule.name": name} for name in names]
    for change in changes:
        (key, value), *_ = change.items()
        try:
            agrees = fits(curve(at, change))
        except (BadInput, KeyError, ValueError):
            continue
        if agrees:
            text = f"it is that of {key}={value:.6g}" if not isinstance(value, str) else f"it is that of {key}={value}"
            now = evidence.values[key]
            yield Pattern(f"{text}, and the config has {now}", f"give the step's schedule the config's {key}, {now}")


def _final_share(curve: Curve, at: np.ndarray, values: np.ndarray) -> list[float]:
    """Solve for the final share at the last line, in which most schedules are linear."""
    low, high = (float(curve(at[-1:], {"schedule.final_share": share})[0]) for share in (0.0, 1.0))
    share = (values[-1] - low) / (high - low) if high != low else math.nan
    return [float(share)] if 0 <= share <= 1 else []


def _whole_number(curve: Curve, at: np.ndarray, values: np.ndarray, key: str, now: int) -> list[int]:
    """Solve for a length by bisection at the middle of the lines, where the LR rises or falls with it."""
    if now < 1:
        return []
    i = len(at) // 2
    low, high = max(1, now // 50), 50 * now
    below, above = (float(curve(at[i : i + 1], {key: n})[0]) - values[i] for n in (low, high))
    if not below * above < 0:
        return []
    while high - low > 1:
        middle = (low + high) // 2
        if (float(curve(at[i : i + 1], {key: middle})[0]) - values[i]) * below > 0:
            low = middle
        else:
            high = middle
    return [low, high]
