"""The rows of `scalelab fit`, from any mix of run folders and tables. (laws/ knows nothing about run folders.)"""

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from scalelab.api.arguments import STORED, Path, check_value, instance
from scalelab.errors import BadInput, nearest_hint
from scalelab.index.grids import describe_left_out
from scalelab.index.table import all_columns, read_grid
from scalelab.laws.fits.study import N_COLUMNS, default_convention, weight_column
from scalelab.laws.law.law import Law
from scalelab.laws.read.checkpoints import check_way, find_checkpoints
from scalelab.laws.read.columns import ALIASES
from scalelab.laws.read.groups import choose_groups
from scalelab.laws.read.points import derivation_rules
from scalelab.laws.read.table import Table, read_table
from scalelab.laws.read.trackers import find_status_columns, read_statuses
from scalelab.laws.read.where import filter_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Rows = Union[Path, Sequence[Path], "Mapping[str, ArrayLike]", Sequence[Mapping[str, object]], Table]


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
    source: str,
    needed: Sequence[str],
    columns: Mapping[str, str],
    n_convention: str | None,
    where: Sequence[str],
    option: str,
    finished: Sequence[str],
    law: Law,
) -> Table:
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
    notes = [f"{describe_left_out(left_out)} ({source}/runs: all)"] if left_out else []
    if law.size:
        for run in runs:  # both columns, so that this N is fitted whichever is the default
            run["N"] = run["N_active"] = _sized(run, law.size)
        n_convention = f"{law.size} parameters" if n_convention in ("total", "active") else n_convention
    elif "N" in needed and any(_sized(run, "active") != run["N"] for run in runs):
        notes.append(
            f"{source}: N counts {n_convention} parameters of models with experts: --size=active or total chooses"
        )
    return Table(filtered, n_convention, "", len(runs) - len(filtered), notes=tuple(notes))


def _sized(run: Mapping[str, Any], size: str) -> Any:
    """A run's active or total parameters; a model without experts has one number for both."""
    return (run.get("N_active") if size == "active" else None) or run["N"]


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
    aliases |= {"experts": 1, "experts_per_token": 1} if aliases.get("experts") == 0 else {}  # a dense model
    for field, sources, _, rule in derivation_rules([field for field, value in aliases.items() if value]):
        aliases[field] = rule(*(aliases[each] for each in sources))
    return aliases | {"N_total": run["N"], "N": N, "M": D / N if D and N else None}


def numeric_columns(rows: Sequence[Mapping[str, Any]], n_convention: str = "total") -> dict[str, np.ndarray]:
    """Collect the columns [P] that hold positive numbers in all rows; N by the convention, `loss` from val_loss."""
    rows = [{**row, "N": row.get(N_COLUMNS[n_convention]), "loss": row.get("val_loss")} for row in rows]
    names = [name for name in rows[0] if all(_positive(row.get(name)) for row in rows)]
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def read_weights(columns: Mapping[str, Any], name: str) -> list[float]:
    """A column of weights. BadInput for one that is not there."""
    names = list(columns)
    return weight_column([dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)], name)


def check_columns(columns: Mapping[str, Any]) -> None:
    """Raise BadInput unless all columns are lists of one length."""
    lengths = {}
    for name, values in columns.items():
        if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
            raise BadInput(f"source: column {name!r} is {str(values)[:60]!r}; it must be a list of values, one a run")
        lengths[name] = len(values)
    if len(set(lengths.values())) != 1:
        raise BadInput(f"source: columns must be equally long, and these have {lengths or 'no value'}")


def list_words(words: str | Sequence[str]) -> list[str]:
    """One word or several as a list."""
    return [words] if isinstance(words, str) else list(words)


def tells_of_runs(table: "Mapping[str, ArrayLike]", law: Law, cluster: str, checkpoints: str) -> bool:
    """Whether columns tell of unfinished runs or checkpoints, which are left out as those of a table are."""
    check_way(checkpoints)
    header = list(map(str, table))
    if find_status_columns(header):
        return True
    if checkpoints == "all" or cluster == "none":
        return False
    columns = {name: np.asarray(values) for name, values in table.items()}
    return find_checkpoints(columns, law, choose_groups(columns, law, cluster)) is not None


def read_rows(
    source: Rows,
    law: Law,
    columns: Mapping[str, str] | None,
    n_convention: str | None,
    where: list[str],
    finished: list[str],
) -> list[dict[str, Any]]:
    """Read the rows of whatever `fit` takes. BadInput for what is none of it."""
    if isinstance(source, Table):
        return list(source.rows)
    check_value("source", source, instance("paths, rows (dicts), or columns by name", str, os.PathLike, Iterable))
    if n_convention not in (None, *N_COLUMNS):
        raise BadInput(
            f"n_convention={n_convention!r} is not a way to count N{nearest_hint(str(n_convention), N_COLUMNS)}"
        )
    if isinstance(source, Mapping):
        source = [dict(zip(source, values, strict=True)) for values in zip(*source.values(), strict=True)]
    sources: list[Any] = [source] if isinstance(source, str | os.PathLike) else list(source)
    if all(isinstance(each, str | os.PathLike) for each in sources):
        paths = [os.path.expanduser(check_value("source", each, STORED)) for each in sources]
        return read_sources(paths, law, columns, n_convention, where, finished=finished).rows
    if not all(isinstance(row, Mapping) for row in sources):
        raise BadInput(f"source={str(source)[:60]}: paths, rows (dicts), or columns by name")
    fields = {"loss": "val_loss"} | dict(columns or {})
    renamed = [{**row, **{field: row[name] for field, name in fields.items() if name in row}} for row in sources]
    rows = filter_rows([{**row, "val_loss": row["loss"]} if "loss" in row else row for row in renamed], where)
    statuses = read_statuses(rows, list(dict.fromkeys(key for row in rows for key in row)), "source", finished)
    return [{**row, "status": status} if status else row for row, status in zip(rows, statuses, strict=True)]
