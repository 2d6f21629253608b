"""The record of a run that another program trained, as its files have it: columns by row, config, state."""

import dataclasses
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_DEPTH = 8  # of nested config values
MOST_VALUES = 1000  # config values of one run
MOST_TEXT = 300  # letters of a config value
GROUPED = re.compile(r"\s*\d{1,3}(,\d{3})+(\.\d+)?\s*")  # 1,234,567
MISSING = frozenset(("", "na", "n/a", "none", "null", "-", "--"))


class Column(NamedTuple):
    """A logged value: `values` [n] and whether each row has it, `present` [n]; a logged nan is present."""

    values: np.ndarray
    present: np.ndarray

    def logged(self) -> np.ndarray:
        """The values of the rows that have one."""
        return self.values[self.present]


@dataclasses.dataclass(frozen=True)
class ForeignRun:
    """A run as its files have it. `columns`: by their names there, one length; `texts`: columns that are not numbers.

    `config`: values by dotted key; `state`: the source's word for how it ended, None without one; `files`: those read;
    `notes`: what was left out. `hf_config`: a config.json of a Hugging Face model beside it.
    """

    name: str
    form: str
    files: Sequence[pathlib.Path]
    columns: Mapping[str, Column]
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    state: str | None = None
    notes: tuple[str, ...] = ()
    hf_config: Mapping[str, Any] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows of every column."""
        return len(next(iter(self.columns.values())).values) if self.columns else 0

    def at_rows(self, rows: np.ndarray, name: str) -> "ForeignRun":
        """Return the run of some rows of a table of several: columns and texts of those rows."""
        columns = {key: Column(each.values[rows], each.present[rows]) for key, each in self.columns.items()}
        texts = {key: [each[row] for row in rows] for key, each in self.texts.items()}
        return dataclasses.replace(self, name=name, columns=columns, texts=texts)


def columns_of_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Column], dict[str, list[Any]]]:
    """Make (columns of numbers, columns of texts) of rows; a column is one of numbers if all its cells are."""
    names = dict.fromkeys(key for row in rows for key in row)
    return columns_of_cells({name: [row.get(name) for row in rows] for name in names})


def columns_of_cells(cells_by_name: Mapping[str, list[Any]]) -> tuple[dict[str, Column], dict[str, list[Any]]]:
    """Make (columns of numbers, columns of texts) of cells by column; one without a value is left out."""
    columns, texts = dict[str, Column](), dict[str, list[Any]]()
    for name, cells in cells_by_name.items():
        column = column_of_cells(cells)
        if column is None:
            texts[name] = cells
        elif column.present.any():
            columns[name] = column
    return columns, texts


def column_of_cells(cells: Sequence[Any]) -> Column | None:
    """Make the column of numbers in some cells; None if one of them is something else."""
    values = np.full(len(cells), math.nan)
    present = np.zeros(len(cells), bool)
    for place, cell in enumerate(cells):
        if cell is None or (isinstance(cell, str) and cell.strip().casefold() in MISSING):
            continue
        if isinstance(cell, bool) or not isinstance(cell, int | float | str):
            return None
        try:
            values[place] = float(cell.replace(",", "") if isinstance(cell, str) and GROUPED.fullmatch(cell) else cell)
        except (ValueError, OverflowError):
            return None
        present[place] = True
    return Column(values, present)


def flatten_values(content: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, plain value) of nested mappings; W&B's `{desc, value}` is its value, lists are left out."""
    if isinstance(content, Mapping):
        if set(content) in ({"desc", "value"}, {"value"}) and prefix:
            content = content["value"]
            if not isinstance(content, Mapping):
                yield from flatten_values(content, prefix, depth)
                return
        if depth < MOST_DEPTH:
            for key, value in content.items():
                yield from flatten_values(value, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    elif content is None or isinstance(content, int | float | str | bool):
        yield prefix, content


def config_values(content: Any) -> dict[str, Any]:
    """Make {dotted key: plain value} of a source's config: printable short texts, finite whole numbers, floats."""
    values: dict[str, Any] = {}
    for key, value in flatten_values(content):
        fits = not isinstance(value, str) or (len(value) <= MOST_TEXT and value.isprintable())
        fits &= not isinstance(value, int) or abs(value) < 2**63
        if fits and key and key.isprintable() and len(key) <= MOST_TEXT and len(values) < MOST_VALUES:
            values[key] = value
    return values


def constant_values(columns: Mapping[str, Column], texts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Find {name: value} of columns with one value in all rows that have one, of several rows or more."""
    constant: dict[str, Any] = {}
    for name, column in columns.items():
        logged = column.logged()
        if len(logged) and np.all(logged == logged[0]) and math.isfinite(logged[0]):
            constant[name] = int(logged[0]) if float(logged[0]).is_integer() else float(logged[0])
    for name, cells in texts.items():
        there = {repr(cell): cell for cell in cells if cell not in (None, "")}
        if len(there) == 1:
            constant[name] = next(iter(there.values()))
    return constant


def merge_lines(parts: Iterable[tuple[str, Sequence[int], Sequence[float]]]) -> dict[str, Column]:
    """Make columns with a row for each step of any series: parts are (name, steps, values); the last of a step counts.

    Adds the column `step`.
    """
    series = [(name, np.asarray(steps, float), np.asarray(values, float)) for name, steps, values in parts]
    every = np.unique(np.concatenate([steps for _, steps, _ in series])) if series else np.zeros(0)
    columns = {"step": Column(every, np.ones(len(every), bool))}
    for name, steps, values in series:
        column = columns.setdefault(name, Column(np.full(len(every), math.nan), np.zeros(len(every), bool)))
        rows = np.searchsorted(every, steps)
        column.values[rows] = values
        column.present[rows] = True
    return columns
