"""What a knob's text would change in the config: only values that the run does not have already are printed."""

import math
import re
from collections.abc import Mapping
from typing import Any

from scalelab.config.keys import key_records

# `group.key=value` in a text; the value ends at a blank, or at a mark before one.
ASSIGNMENT = re.compile(r"\b([a-z_]+\.[a-z_0-9]+)=('[^']*'|\"[^\"]*\"|[^\s,;:()]+)")
BARE = re.compile(r"(?<=, )([a-z_0-9]+)=(?=[^\s,;:()])")  # a second key, of the group of the first
SAME = 1e-6  # relative difference of equal numbers


def assignments(knob: str) -> dict[str, str]:
    """Find {key of the config: value as text} in a knob."""
    return {key: value.strip("'\"") for key, value in ASSIGNMENT.findall(_with_groups(knob)) if key in key_records()}


def changes_of(knob: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Those of `assignments` whose value is not the run's present one."""
    return {key: value for key, value in assignments(knob).items() if not is_present(values.get(key), value)}


def without_present(knob: str, values: Mapping[str, Any]) -> str:
    """Leave out of a knob what the run has already; if nothing is left, say where else to look."""
    asked = assignments(knob)
    idle = [key for key, value in asked.items() if is_present(values.get(key), value)]
    if not idle:
        return knob
    listed = ", ".join(f"{key}={values.get(key)}" for key in idle)
    changes = {key: value for key, value in asked.items() if key not in idle}
    if changes:
        return ", ".join(f"{key}={value}" for key, value in changes.items()) + f" ({listed} already)"
    words = re.sub(r"^[\s,:;]+|[\s,:;]+$", "", ASSIGNMENT.sub("", _with_groups(knob)))
    words = re.sub(r"^(or|and)\b\s*|\s*\b(or|and)$", "", words)
    elsewhere = f"not the config, which has {listed}: own code, an edited file, or the weights it started from"
    return f"{words} ({listed} already)" if len(words.split()) > 2 and not words.startswith("(") else elsewhere


def is_present(present: Any, asked: str) -> bool:
    """Whether a config's value is the one asked for as text."""
    if isinstance(present, bool):
        return asked.casefold() == str(present).casefold()
    if isinstance(present, int | float):
        try:
            return math.isclose(float(asked), present, rel_tol=SAME)
        except ValueError:
            return False
    return present is not None and str(present) == asked


def _with_groups(knob: str) -> str:
    """Write `init_std=0.02` after `model.projection_std=0, ` as `model.init_std=0.02`."""
    first = ASSIGNMENT.search(knob)
    if first is None:
        return knob
    group = first[1].partition(".")[0]
    named = lambda match: f"{group}.{match[1]}=" if f"{group}.{match[1]}" in key_records() else match[0]  # noqa: E731
    return BARE.sub(named, knob)
