"""Tells a run's final loss from its checkpoints: rows of one run below its last, or before the end of its schedule.

A loss before the learning rate has decayed lies above the loss of a run that ends there, so a law through checkpoints
is not a law of runs. Legend: P points.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.law import Law
from scalelab.laws.read.columns import plain_name, without_prefix
from scalelab.laws.read.groups import Groups, names_run

WAYS = ("auto", "last", "all")
STEPS = ("step", "globalstep", "trainstep", "trainerglobalstep", "iteration", "iter", "currentstep")
ALL_STEPS = (
    "totalsteps", "maxsteps", "trainsteps", "numtrainsteps", "numsteps", "nsteps", "steps", "totaliterations",
    "maxiters", "maxiterations", "trainiters", "scheduleend", "horizon",
)  # fmt: skip
DONE = 0.98  # a last row is logged some steps before the end
REGULAR = 0.02  # how far distances between evenly spaced checkpoints may differ
FEWEST_SPACED = 6  # rows of a run that are evenly spaced by plan, not by chance
Column = Sequence[Any] | np.ndarray


class Checkpoints(NamedTuple):
    """`early` [P]: the rows that are not final losses; `runs`: how many others are left; `why`: how they are told."""

    early: np.ndarray
    runs: int
    why: str


def check_way(way: str) -> None:
    """BadInput for a value of --checkpoints that is not one."""
    if way not in WAYS:
        raise BadInput(f"--checkpoints={way}: which rows of a run are fitted{nearest_hint(way, WAYS)}")


def find_checkpoints(table: Mapping[str, Column], law: Law, groups: Groups | None) -> Checkpoints | None:
    """Find the rows that are checkpoints; None if there are none.

    A row is one if its step lies before the number of steps that its run has, or if it is not the last row of its run:
    where a column named after runs tells runs, or where another column's groups are evenly spaced in D. Rows of one
    model that a text tells may be runs of several lengths.
    """
    early = _before_the_end(table)
    why = "their step lies before their run's last" if early is not None else ""
    length = next((np.asarray(table[n], float) for n in ("D", "C", "M") if n in table and n != law.target), None)
    if groups is not None and groups.column != "setting" and length is not None:
        rows = _rows_of_runs(groups)
        if names_run(groups.column) or _are_spaced(length, rows) or early is not None:
            below = np.zeros(len(length), bool)
            for each in rows:
                below[each] = length[each] < length[each].max()
            if below.any():
                early = below if early is None else early | below
                why = f"rows of one {groups.column!r} below its last"
    if early is None:
        return None
    return Checkpoints(early, int((~early).sum()), why)


def _rows_of_runs(groups: Groups) -> list[np.ndarray]:
    """The rows of each run that has several."""
    labels = np.unique(np.asarray(groups.labels, dtype=str), return_inverse=True)[1]
    order = np.argsort(labels, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return [part for part in parts if len(part) > 1]


def _before_the_end(table: Mapping[str, Column]) -> np.ndarray | None:
    """The rows whose step lies before the number of steps of their run; None without both columns, or if all do."""
    step, steps = (_column_named(table, names) for names in (STEPS, ALL_STEPS))
    if step is None or steps is None:
        return None
    with np.errstate(invalid="ignore"):
        early = step < DONE * steps
        beyond = step > 1.01 * steps + 1
    return early if early.any() and not early.all() and not beyond.any() else None


def _column_named(table: Mapping[str, Column], names: Sequence[str]) -> np.ndarray | None:
    for name, values in table.items():
        if plain_name(name) in names or plain_name(without_prefix(name)) in names:
            try:
                return np.array([np.nan if value in (None, "") else float(value) for value in values])
            except (TypeError, ValueError):
                return None
    return None


def _are_spaced(length: np.ndarray, rows: Sequence[np.ndarray]) -> bool:
    """Whether most runs have rows that are evenly spaced, as evaluations every so many steps are."""
    spaced = 0
    for each in rows:
        gaps = np.diff(np.sort(length[each]))
        near = np.abs(gaps - np.median(gaps)) <= REGULAR * np.median(gaps)
        spaced += len(each) >= FEWEST_SPACED and np.mean(near) >= 0.7
    return bool(2 * spaced > len(rows))
