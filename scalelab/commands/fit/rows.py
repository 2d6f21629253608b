"""The rows of `scalelab fit`, from folders of runs and tables, mixed as the user likes. (The laws know no run folders.)"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.law import Law
from scalelab.laws.read.study import N_COLUMNS
from scalelab.laws.read.table import ALIASES, Table, read_table
from scalelab.laws.read.where import filter_rows
from scalelab.records import read_runs


def read_sources(
    sources: Sequence[str], law: Law, columns: Mapping[str, str] | None = None, n_convention: str | None = None,
    where: Sequence[str] = (), with_target: bool = True,
) -> Table:  # fmt: skip
    """The rows of every folder and table in `sources` with the columns that `law` needs, ready for `study.fit_study`.

    `n_convention` says which N a run's folder gives (`study.N_COLUMNS`; total where None), `columns` which column of a
    table, or of the runs, holds a field. A row of one of several tables is named after its file. Runs that are only planned
    have no target yet.
    """
    columns, needed = dict(columns or {}), (*law.columns, *([law.target] if with_target else []))
    if n_convention not in (None, *N_COLUMNS):
        raise BadInput(f"--n={n_convention}: unknown convention{nearest_hint(str(n_convention), N_COLUMNS)}")
    if n_convention and "N" in columns:
        raise BadInput(f"--n={n_convention} and --columns=N={columns['N']} both say what N is: give one")
    for source in sources:
        if not os.path.exists(source):
            raise BadInput(f"no file or folder {source!r}")
    if "N" in columns and all(pathlib.Path(source).is_dir() for source in sources):
        raise BadInput(f"--columns=N=… is for tables, and {sources[0]!r} is a folder: choose N by --n")
    if n_convention:
        columns["N"] = N_COLUMNS[n_convention]
    # Beside a table they are its columns, if not the runs'.
    if all(pathlib.Path(source).is_dir() for source in sources):
        known = sorted({key for source in sources for run in read_runs(source) for key in run})
        for name in (name for field, name in columns.items() if field != "N" and name not in known):
            raise BadInput(f"--columns: no run of {', '.join(sources)} has {name!r}{nearest_hint(name, known)}")
    tables = [_read(source, needed, columns, n_convention or "total", where) for source in sources]
    if not any(table.rows for table in tables):
        rows = sum(table.left_out for table in tables)
        raise BadInput(f"--where={' and '.join(where)} leaves none of {rows} rows")
    if len(tables) > 1:
        for source, table in zip(sources, tables, strict=True):
            if not any(row.get("role") == "fit" for row in table.rows):  # then all of this source is meant
                table.rows[:] = [{**row, "role": row.get("role") or "fit"} for row in table.rows]
            for row in table.rows:
                row["name"] = f"{pathlib.Path(source).name}: {row['name']}"
    return Table(
        [row for table in tables for row in table.rows],
        n_convention or "; ".join(dict.fromkeys(table.n_convention for table in tables)),
        "; ".join(dict.fromkeys(table.derived for table in tables if table.derived)),
        sum(table.left_out for table in tables),
    )


def _read(
    source: str, needed: Sequence[str], columns: Mapping[str, str], n_convention: str, where: Sequence[str]
) -> Table:
    """One source. Rows of a table have N in the convention's column too, so that both kinds can be fitted together."""
    column = N_COLUMNS[n_convention]
    if not pathlib.Path(source).is_dir():
        table = read_table(source, columns, needed, where)
        return table._replace(rows=[row | {column: row["N"]} if "N" in row else row for row in table.rows])
    runs = [_named(_run(run, column), columns) for run in read_runs(source)]
    kept = filter_rows(runs, where)
    return Table([{**run, "N": run["N_total"]} for run in kept], n_convention, "", len(runs) - len(kept))


def _named(run: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """A run's row with the fields that `columns` takes from others of its columns: those of `scalelab eval`, say."""
    named = {field: run[name] for field, name in columns.items() if field != "N" and name in run}
    return run | named | ({"val_loss": named["loss"]} if "loss" in named else {})


def _run(run: dict[str, Any], column: str) -> dict[str, Any]:
    """A run's row under the names that expressions and laws know, N by the convention."""
    N, D = run[column], run["D"]
    aliases = {
        field: next((run[n] for n in names if n in run), None) for field, names in ALIASES.items() if field not in run
    }
    return run | aliases | {"N_total": run["N"], "N": N, "M": D / N if D and N else None}


def numeric_columns(rows: Sequence[Mapping[str, Any]], n_convention: str = "total") -> dict[str, np.ndarray]:
    """Every column [P] that is a positive number in all rows; N by the convention, `loss` from val_loss."""
    rows = [{**row, "N": row.get(N_COLUMNS[n_convention]), "loss": row.get("val_loss")} for row in rows]
    names = [name for name in rows[0] if all(_positive(row.get(name)) for row in rows)]
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
