"""The rows of `scalelab fit`, from any mix of run folders and tables. (laws/ knows nothing about run folders.)"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.index.grids import describe_left_out
from scalelab.index.table import all_columns, read_grid
from scalelab.laws.fits.study import N_COLUMNS, default_convention
from scalelab.laws.law.law import Law
from scalelab.laws.read.columns import ALIASES
from scalelab.laws.read.table import Table, read_table
from scalelab.laws.read.where import filter_rows


def read_sources(
    sources: Sequence[str],
    law: Law,
    columns: Mapping[str, str] | None = None,
    n_convention: str | None = None,
    where: Sequence[str] = (),
    with_target: bool = True,
    option: str = "--columns",
    finished: Sequence[str] = (),
) -> Table:
    """Read the rows of every folder and table in `sources` with the columns that `law` needs, for `study.fit_study`.

    `n_convention`: the N to read from run folders (`study.N_COLUMNS`; None: `default_convention`). `columns`: {field:
    column} of a table or of the runs, given by `option`. `with_target`: False for runs that are only planned and have
    no loss yet. `finished`: words of a table's status that mean a finished run.
    With several sources, a row's name starts with its file or folder. BadInput if a source, a column or the convention
    is unknown, or if `where` leaves no row.
    """
    columns, needed = dict(columns or {}), (*law.columns, *([law.target] if with_target else []))
    if n_convention not in (None, *N_COLUMNS):
        raise BadInput(f"--n-convention={n_convention}: unknown convention{nearest_hint(str(n_convention), N_COLUMNS)}")
    if n_convention and "N" in columns:
        raise BadInput(f"--n-convention={n_convention} and {option}=N={columns['N']} both say what N is: give one")
    for source in sources:
        if not os.path.exists(source):
            raise BadInput(f"no file or folder {source!r}")
    if "N" in columns and all(pathlib.Path(source).is_dir() for source in sources):
        raise BadInput(f"--columns=N=… is for tables, and {sources[0]!r} is a folder: choose N by --n-convention")
    if n_convention:
        columns["N"] = N_COLUMNS[n_convention]
    # If there is a table too, a name that the runs lack may be one of its columns.
    mapped = [name for field, name in columns.items() if field != "N"]
    if mapped and all(pathlib.Path(source).is_dir() for source in sources):
        known = sorted(all_columns(run for source in sources for run in read_grid(source)[0]))
        for name in (name for name in mapped if name not in known):
            raise BadInput(f"--columns: no run of {', '.join(sources)} has {name!r}{nearest_hint(name, known)}")
    tables = [_read(source, needed, columns, n_convention, where, option, finished, law) for source in sources]
    if not n_convention and any(table.n_convention == "active" for table in tables):
        for table in tables:
            table.rows[:] = [{"N_active": row.get("N"), **row} for row in table.rows]
    if not any(table.rows for table in tables):
        rows = sum(table.left_out for table in tables)
        raise BadInput(f"--where={' and '.join(where)} leaves none of {rows} rows")
    if len(tables) > 1:
        for source, table in zip(sources, tables, strict=True):
            if not any(row.get("role") == "fit" for row in table.rows):  # without roles the whole source is fitted
                table.rows[:] = [{**row, "role": row.get("role") or "fit"} for row in table.rows]
            for row in table.rows:
                row["name"] = f"{pathlib.Path(source).name}: {row['name']}"
    return Table(
        [row for table in tables for row in table.rows],
        n_convention or "; ".join(dict.fromkeys(table.n_convention for table in tables)),
        "; ".join(dict.fromkeys(table.derived for table in tables if table.derived)),
        sum(table.left_out for table in tables),
        {field: name for table in reversed(tables) for field, name in table.columns.items()},
        tuple(note for table in tables for note in table.notes),
    )


def _read(
    source: str, needed: Sequence[str], columns: Mapping[str, str], n_convention: str | None, where: Sequence[str],
    option: str, finished: Sequence[str], law: Law,
) -> Table:  # fmt: skip
    """Read one source. Table rows get N in the convention's column too, so that both kinds can be fitted together."""
    if not pathlib.Path(source).is_dir():
        table = read_table(source, columns, needed, where, option, finished, law)
        column = N_COLUMNS[n_convention or "total"]
        return table._replace(rows=[row | {column: row["N"]} if "N" in row else row for row in table.rows])
    runs, left_out = read_grid(source)  # changed in place: copies of thousands of rows would cost more than the rest
    n_convention = n_convention or default_convention(runs)
    column = N_COLUMNS[n_convention]
    for run in runs:
        run.update(_rename_columns(run, column))
        run.update(_map_fields(run, columns))
    filtered = filter_rows(runs, where)
    for run in runs:
        run["N"] = run["N_total"]
    notes = (f"{describe_left_out(left_out)} ({source}/runs: all)",) if left_out else ()
    return Table(filtered, n_convention, "", len(runs) - len(filtered), notes=notes)


def _map_fields(run: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Map fields to the run's columns that `columns` names, e.g. to scores of `scalelab eval`."""
    fields = {field: run[name] for field, name in columns.items() if field != "N" and name in run}
    return fields | ({"val_loss": fields["loss"]} if "loss" in fields else {})


def _rename_columns(run: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Rename a run's columns as expressions and laws name them; N comes from the convention's `column`."""
    N, D = run[column], run["D"]
    aliases = {
        field: next((run[n] for n in names if n in run), None) for field, names in ALIASES.items() if field not in run
    }
    sequences, length = run.get("train.global_batch"), run.get("model.seq_len")
    aliases |= {"batch_tokens": sequences * length} if sequences and length else {}
    return aliases | {"N_total": run["N"], "N": N, "M": D / N if D and N else None}


def numeric_columns(rows: Sequence[Mapping[str, Any]], n_convention: str = "total") -> dict[str, np.ndarray]:
    """Collect the columns [P] that hold positive numbers in all rows; N by the convention, `loss` from val_loss."""
    rows = [{**row, "N": row.get(N_COLUMNS[n_convention]), "loss": row.get("val_loss")} for row in rows]
    names = [name for name in rows[0] if all(_positive(row.get(name)) for row in rows)]
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
