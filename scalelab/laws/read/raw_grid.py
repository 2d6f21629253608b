"""Refuses a law over the raw grid of a sweep, in which every size has good and bad settings.

A regression over all settings that were tried follows the grid, not the optimum: it is not a law of best settings.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.law.law import Law
from scalelab.laws.read.columns import fitting_columns
from scalelab.laws.read.points import is_numeric, merge_near

SETTINGS = ("lr", "batch", "batch_tokens")  # fields that a sweep tries; their other names are those of `columns`
LEAST_TRIED = 3  # values of a setting at one size
MOST_REPEATED = 0.5  # a target with so few distinct values, as a share of the rows, was chosen and not measured


def refuse_raw_grid(table: Mapping[str, Sequence[Any] | np.ndarray], law: Law) -> None:
    """BadInput where most rows are equal in size and differ in a setting: the law's target, or another column.

    A size is a row's values of the law's columns, and of N and D where the table has them: a table of optima has one
    row a size, though a law of D alone sees many there. A target counts as a setting by its name, or if its values
    recur at other sizes, as measured ones hardly do.
    """
    if not all(name in table and is_numeric(table[name]) for name in law.columns):
        return
    own = [name for name in ("N", "D") if name in table and name not in law.columns and _all_positive(table[name])]
    sizes = [tuple(row) for row in zip(*(merge_near(table[name]) for name in (*law.columns, *own)), strict=True)]
    per = ",".join(law.columns)
    if law.target != "loss" and law.target in table and _is_setting(law.target, table[law.target]):
        if _tried(sizes, table[law.target]):
            raise BadInput(
                f"law {law.name!r} is one of the best {law.target}, and these rows are a raw grid: many values of "
                f"{law.target} at the same {per}; find the best of each first: --best-of={_tried_settings(table, law)} "
                f"--per={_sizes(table, law)}"
            )
    elif law.target == "loss":
        for field, name in _setting_columns(table, law):
            if _tried(sizes, table[name]):
                given = "" if field == name else f" --columns={field}={name}"
                raise BadInput(
                    f"these rows are a raw grid: many values of {name} at the same {per}, of which a law of {per} "
                    f"would take the mean; --best-of={field} --per={per}{given} finds the best of each (--figures "
                    f"writes their losses), or leave the others out by --where"
                )


def _all_positive(values: Sequence[Any] | np.ndarray) -> bool:
    return is_numeric(values) and bool(np.all(np.asarray(values, float) > 0))


def _tried_settings(table: Mapping[str, Any], law: Law) -> str:
    """The law's target and the other settings of the table that vary: `lr,batch`."""
    others = [field for field, name in _setting_columns(table, law) if len(set(table[name])) >= LEAST_TRIED]
    return ",".join(dict.fromkeys([law.target, *others]))


def _sizes(table: Mapping[str, Any], law: Law) -> str:
    """The law's columns, and N or D where the table has them and they vary: `N,D`."""
    others = [name for name in ("N", "D") if name in table and len(set(table[name])) >= LEAST_TRIED]
    return ",".join(sorted({*law.columns, *others}, key="ND".find))


def _is_setting(target: str, values: Iterable[Any]) -> bool:
    rounded = [_round(value) for value in values]
    return target in SETTINGS or len(set(rounded)) <= MOST_REPEATED * len(rounded)


def _setting_columns(table: Mapping[str, Any], law: Law) -> list[tuple[str, str]]:
    """(field, column) of the settings in the table that the law does not use."""
    header = list(table)
    numeric = [name for name in header if _is_number(table[name][0])]
    pairs = [(field, name) for field in SETTINGS for name in fitting_columns(field, header, numeric)]
    return [(field, name) for field, name in pairs if not {field, name} & set(law.columns)]


def _tried(sizes: Sequence[tuple], values: Iterable[Any]) -> bool:
    """Whether most rows stand at sizes that have LEAST_TRIED values or more."""
    tried: dict[tuple, set] = {}
    for size, value in zip(sizes, values, strict=True):
        tried.setdefault(size, set()).add(_round(value))
    rows = Counter(sizes)
    return 2 * sum(rows[size] for size, each in tried.items() if len(each) >= LEAST_TRIED) > len(sizes)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _round(value: Any) -> Any:
    return f"{value:.9g}" if _is_number(value) else value
