"""Swept keys that change what a run costs: axes of a design, along which no value is the best one."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config.keys import traced_keys
from scalelab.sweep.answer.settings import group_rows

SIZE_COLUMNS = ("N", "D", "C")  # parameters, tokens and FLOPs of a run
STEPS_KEY = "train.steps"  # the one traced number that changes what a run costs: the others only enter its arithmetic
LEAST_CHANGE = 0.02  # of any of them: less is rounding, or a few parameters of a norm


def find_design_keys(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> tuple[str, ...]:
    """Those of `keys` that change N, D or C of finished runs: alone, or only together, as the rungs of an ablation do.

    A key counts as moving together with the size if each size has one value of it, and the values differ.
    """
    finished = [row for row in rows if row["status"] == "done" and not row.get("mixed")]
    may = [key for key in keys if key == STEPS_KEY or key not in traced_keys()]
    alone = [key for key in may if _changes_size(finished, key, [other for other in keys if other != key])]
    together = {key for group in group_rows(finished, alone) for key in may if _moves_with_size(group, key)}
    return tuple(key for key in may if key in alone or key in together)


def find_unequal_columns(rows: Sequence[Mapping[str, Any]], design: Sequence[str]) -> tuple[str, ...]:
    """Those of N, D and C that differ between finished runs of one place in the design, whatever key changed them."""
    finished = [row for row in rows if row["status"] == "done" and not row.get("mixed")]
    groups = group_rows(finished, design)
    return tuple(column for column in SIZE_COLUMNS if any(_differs(group, column) for group in groups))


def _changes_size(rows: Sequence[Mapping[str, Any]], key: str, others: Sequence[str]) -> bool:
    for group in group_rows(rows, others):
        firsts = [members[0] for members in group_rows(group, [key])]
        if any(_differs(firsts, column) for column in SIZE_COLUMNS):
            return True
    return False


def _moves_with_size(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether each size among the rows has one value of the key, and there are several sizes and values."""
    sizes: list[list[Mapping[str, Any]]] = []
    for row in rows:
        alike = next((size for size in sizes if not any(_differs([size[0], row], c) for c in SIZE_COLUMNS)), None)
        sizes.append([row]) if alike is None else alike.append(row)
    one_each = all(len(group_rows(size, [key])) == 1 for size in sizes)
    return len(sizes) > 1 and one_each and len(group_rows(rows, [key])) > 1


def _differs(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    sizes = [row[column] for row in rows if isinstance(row.get(column), int | float) and row[column] > 0]
    return bool(sizes) and max(sizes) > (1 + LEAST_CHANGE) * min(sizes)
