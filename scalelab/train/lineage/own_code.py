"""Users' functions on record: the hashes of their source files, and of a schedule of one's own the curve it gave."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import user_code
from scalelab.config.keys import key_records
from scalelab.optim import schedules
from scalelab.record.identity import CODE_PREFIX

OwnCode = dict[str, dict[str, Any]]  # by key: `function`, `files` {name: SHA-256}, of a schedule `curve` {step: LR}
SCHEDULE_KEY = "schedule.name"
CODE_GROUP = CODE_PREFIX.removesuffix(".")
CURVE_POINTS = 33  # steps at which a schedule's LR is kept, evenly over the run, its first and last among them
CURVE_TOLERANCE = 1e-5  # of the largest LR: other machines and versions round otherwise
SHORT = 10  # digits of a hash in a message


def code_keys() -> tuple[str, ...]:
    """`code.KEY` for every key that may name a user's function."""
    return tuple(f"{CODE_PREFIX}{name}" for name, record in key_records().items() if record.user_code)


def describe_own_code(config: ConfigDict) -> OwnCode:
    """What is recorded of every users' function that a resolved config names; {} if it names none."""
    described: OwnCode = {}
    for key, names in _own_functions(config).items():
        files = [user_code.source_hashes(name, key) for name in names]
        described[key] = {"function": ",".join(names), "files": {k: v for each in files for k, v in each.items()}}
    if SCHEDULE_KEY in described:
        described[SCHEDULE_KEY]["curve"] = _curve(config, _grid(config.train.steps))
    return described


def _own_functions(config: ConfigDict) -> dict[str, list[str]]:
    """{key: names} of the users' functions in a config, without names that only a stored file gives: they never run."""
    records = {key: record for key, record in key_records().items() if record.user_code}
    values = {key: config[key.split(".")[0]][key.split(".")[1]] for key in records}
    names = {key: [n for n in dict.fromkeys(r.names_in(values[key])) if ":" in n] for key, r in records.items()}
    trusted = {key: [name for name in each if user_code.is_trusted(name)] for key, each in names.items()}
    return {key: each for key, each in trusted.items() if each}


def _grid(steps: int) -> list[int]:
    return [int(step) for step in np.unique(np.linspace(0, steps - 1, CURVE_POINTS).round())]


def _curve(config: ConfigDict, steps: Sequence[int]) -> dict[str, float]:
    """{step: LR} of a config's schedule; a value that is not a number is left out, and refused elsewhere."""
    rates = schedules.schedule_curves(config, steps)["lr"]
    return {str(step): float(rate) for step, rate in zip(steps, rates, strict=True) if np.isfinite(rate)}


def diff_own_code(old: OwnCode, new: OwnCode, old_config: ConfigDict | None) -> dict[str, tuple[str, str]]:
    """`{code.KEY: (before, now)}` of functions of one name whose files changed, or whose curve did; as text.

    `old_config`: the config that `old` was recorded under. The schedule as it is now is asked for its curve under it,
    so another peak LR isn't a change of code.
    """
    changes: dict[str, tuple[str, str]] = {}
    for key in [key for key in old if key in new and old[key]["function"] == new[key]["function"]]:
        before, now = _file_changes(old[key]["files"], new[key]["files"])
        if key == SCHEDULE_KEY and old_config is not None:
            curves = _curve_change(old[key].get("curve", {}), old_config)
            before, now = (", ".join(filter(None, pair)) for pair in zip((before, now), curves, strict=True))
        if before != now:
            changes[f"{CODE_PREFIX}{key}"] = (before, now)
    return changes


def _file_changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, str]:
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    before, now = (
        ", ".join(f"{name} {files[name][:SHORT]}" if name in files else f"no {name}" for name in names)
        for files in (old, new)
    )
    return before, now


def _curve_change(curve: Mapping[str, float], config: ConfigDict) -> tuple[str, str]:
    """The first step of a stored curve at which the schedule as it is now gives another LR, and both; "" if none."""
    now = _curve(config, [int(step) for step in curve]) if curve else {}
    largest = max(map(abs, curve.values()), default=0.0)
    for step, rate in sorted(curve.items(), key=lambda pair: int(pair[0])):
        if step not in now or abs(now[step] - rate) > CURVE_TOLERANCE * largest:
            return f"LR {rate:.6g} at step {step}", f"LR {now.get(step, np.nan):.6g} at step {step}"
    return "", ""
