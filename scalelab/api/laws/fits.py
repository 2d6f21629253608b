"""Fit a scaling law from Python, as `scalelab fit` does."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Union

import numpy as np

from scalelab.api.arguments import (
    FUNCTION,
    HELD,
    POSITIVE,
    SHARE,
    STORED,
    TEXT,
    Kind,
    Path,
    check_arguments,
    check_value,
    either,
    instance,
    list_paths,
    mapping_of,
    optional,
    several,
)
from scalelab.api.laws.fit_rows import read_sources
from scalelab.api.laws.settings import read_best_settings
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.fits.fitting import fit as fit_columns
from scalelab.laws.fits.study import N_COLUMNS, default_convention, fit_group_study, fit_study, weight_column
from scalelab.laws.fits.weights import BY_SIZE
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.names import load_law as load_named
from scalelab.laws.read.checkpoints import check_way, find_checkpoints
from scalelab.laws.read.groups import choose_groups
from scalelab.laws.read.table import Table
from scalelab.laws.read.trackers import find_status_columns, read_statuses
from scalelab.laws.read.where import filter_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from scalelab.laws.fits.fitted import Fitted
    from scalelab.laws.fits.groups.group_fits import GroupFits
    from scalelab.laws.law.law import Law
    from scalelab.laws.use.settings.best import BestSettings


Rows = Union[Path, Sequence[Path], "Mapping[str, ArrayLike]", Sequence[Mapping[str, object]], "Table"]
AnyLaw = Union[str, "Law", Callable[..., object]]
Counted = Callable[[str, int, int], None]
OVER = optional(
    mapping_of(
        Kind("", lambda value: isinstance(value, list | tuple) and all(map(TEXT.fits, value))),
        "a dict of lists of columns such as {'lr': ['N']}",
    )
)
FITTING = {"hold": HELD, "k": optional(POSITIVE)}


def load_law(law: AnyLaw, hold: Mapping[str, float] | None = None) -> "Law":
    """Load a law by name, `pkg.mod:fn`, function or record; `hold` = {parameter: value} holds parameters fixed."""
    check_value("law", law, either(instance("a law's name, a Law", str, law_lib.Law), FUNCTION))
    known = load_named(law) if isinstance(law, str) else law if isinstance(law, law_lib.Law) else law_lib.law_of(law)
    return law_lib.hold_params(known, **check_value("hold", hold, HELD)) if hold else known


@check_arguments(sources=several(STORED))
def read_table(
    sources: Path | Sequence[Path],
    law: AnyLaw = "chinchilla",
    *,
    columns: Mapping[str, str] | None = None,
    n_convention: str | None = None,
    where: str | Sequence[str] = (),
    finished: str | Sequence[str] = (),
) -> Table:
    """Read rows of runs and tables as `fit` reads them for a law, with notes on the reading (`Table.notes`).

    `finished`: words in a table's column status or state that mean a finished run, beside the usual ones.
    """
    names = [os.path.expanduser(source) for source in list_paths(sources)]
    return read_sources(names, load_law(law), columns, n_convention, list(where), finished=_list_words(finished))


@check_arguments(**FITTING)
def fit(
    source: Rows, law: AnyLaw = "chinchilla", *, columns: Mapping[str, str] | None = None,
    n_convention: str | None = None, where: str | Sequence[str] = (), drop_top_loss: int = 0, cluster: str = "auto",
    checkpoints: str = "auto", hold: Mapping[str, float] | None = None, objective: str = "huber_log",
    delta: float | None = None, bootstrap: int = 1000, seed: int = 0, target_flops: float | Sequence[float] = (),
    target_values: Mapping[str, float] | None = None, holdout: int = 0, level: float = 0.9, identify: bool = True,
    k: float | None = None, weights: str | None = None, progress: Counted | None = None,
    finished: str | Sequence[str] = (),
) -> "Fitted":  # fmt: skip
    """Fit a scaling law (`scalelab fit`) to runs or a table, with intervals and what the data determine.

    `source`: a folder of runs, a .csv, .jsonl or .parquet file, several of these; or rows, as `runs` returns them; or
    columns `{"N": …, "D": …, "loss": …}`; or what `read_table` read. `law`: a name, `pkg.mod:fn`, a function or a
    `Law`. The others are the command's options; `k`: FLOPs of a parameter and token, `identify`: find out what the data
    determine, `progress(what, done, of)`. BadInput as the command; FitError where no optimum can be certified.
    """
    known, options = load_law(law, hold), _Options(
        objective=objective, delta=delta, bootstrap=bootstrap, seed=seed, target_flops=list_budgets(target_flops),
        level=level, k=k, held=target_values, progress=progress,
    )  # fmt: skip
    if isinstance(source, Mapping):
        _check_columns(source)
        plain = not (columns or n_convention or where or drop_top_loss or finished)
        if plain and not _tells_of_runs(source, known, cluster, checkpoints):
            given = weights if weights in (None, BY_SIZE) else _column(source, weights)
            return fit_columns(
                source, known, cluster=cluster, holdout=holdout, identify=identify, weights=given, **options
            )
    rows = _read_rows(source, known, columns, n_convention, list(where), _list_words(finished))
    return fit_study(
        rows, known, n_convention or default_convention(rows), drop_top_loss, cluster, checkpoints, weights,
        holdout=holdout, identify=identify, **options,
    )  # fmt: skip


@check_arguments(**FITTING)
def fit_groups(
    source: Rows, by: str, law: AnyLaw = "chinchilla", *, columns: Mapping[str, str] | None = None,
    n_convention: str | None = None, where: str | Sequence[str] = (), drop_top_loss: int = 0, cluster: str = "auto",
    checkpoints: str = "auto", hold: Mapping[str, float] | None = None, exponents: str = "shared",
    shared: str | Sequence[str] = (), against: str | None = None, objective: str = "huber_log",
    delta: float | None = None, bootstrap: int = 1000, seed: int = 0, target_flops: float | Sequence[float] = (),
    target_values: Mapping[str, float] | None = None, level: float = 0.9, k: float | None = None,
    progress: Counted | None = None, finished: str | Sequence[str] = (),
) -> "GroupFits":  # fmt: skip
    """Fit one law to groups of rows, those of equal values in column `by`, and compare them (`scalelab fit --by`).

    `exponents`: shared, separate or pooled; `shared`: further parameters of all groups; `against`: the group of
    reference. The others as for `fit`.
    """
    budgets = [target_flops] if isinstance(target_flops, int | float) else list(target_flops)
    known, options = load_law(law, hold), _Options(
        objective=objective, delta=delta, bootstrap=bootstrap, seed=seed, target_flops=budgets,
        level=level, k=k, held=target_values, progress=progress,
    )  # fmt: skip
    if isinstance(source, Mapping):
        _check_columns(source)
    rows = _read_rows(source, known, columns, n_convention, list(where), _list_words(finished))
    return fit_group_study(
        rows, by, known, n_convention or default_convention(rows), drop_top_loss, cluster, checkpoints,
        exponents=exponents, shared=tuple([shared] if isinstance(shared, str) else shared), against=against, **options,
    )  # fmt: skip


def _column(columns: Mapping[str, Any], name: str) -> list[float]:
    """A column of weights. BadInput for one that is not there."""
    names = list(columns)
    return weight_column([dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)], name)


class _Options(TypedDict):
    """The options of both `fit` and `fit_groups`."""

    objective: str
    delta: float | None
    bootstrap: int
    seed: int
    target_flops: Sequence[float]
    level: float
    k: float | None
    held: Mapping[str, float] | None
    progress: Counted | None


def list_budgets(values: float | Sequence[float]) -> Sequence[float]:
    """The list of budgets in a parameter that takes one or several. BadInput for a budget that is not positive."""
    budgets = [values] if isinstance(values, int | float) else list(values)
    for C in budgets:
        if not C > 0:
            raise BadInput(f"C = {C:g}: a budget is a positive number of FLOPs")
    return budgets


def _check_columns(columns: Mapping[str, Any]) -> None:
    """Raise BadInput unless all columns are lists of one length."""
    lengths = {}
    for name, values in columns.items():
        if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
            raise BadInput(f"source: column {name!r} is {str(values)[:60]!r}; it must be a list of values, one a run")
        lengths[name] = len(values)
    if len(set(lengths.values())) != 1:
        raise BadInput(f"source: columns must be equally long, and these have {lengths or 'no value'}")


def _list_words(words: str | Sequence[str]) -> list[str]:
    return [words] if isinstance(words, str) else list(words)


def _tells_of_runs(table: "Mapping[str, ArrayLike]", law: "Law", cluster: str, checkpoints: str) -> bool:
    """Whether columns tell of unfinished runs or checkpoints, which are left out as those of a table are."""
    check_way(checkpoints)
    header = list(map(str, table))
    if find_status_columns(header):
        return True
    if checkpoints == "all" or cluster == "none":
        return False
    columns = {name: np.asarray(values) for name, values in table.items()}
    return find_checkpoints(columns, law, choose_groups(columns, law, cluster)) is not None


def _read_rows(
    source: Rows,
    law: "Law",
    columns: Mapping[str, str] | None,
    n_convention: str | None,
    where: list[str],
    finished: list[str],
) -> list[dict[str, Any]]:
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


@check_arguments(source=several(STORED), over=OVER, level=SHARE)
def best_settings(
    source: Path | Sequence[Path], best_of: str | Sequence[str] = "lr", per: str | Sequence[str] = ("N", "D"),
    over: Mapping[str, Sequence[str]] | None = None, *, columns: Mapping[str, str] | None = None,
    n_convention: str | None = None, where: str | Sequence[str] = (), drop_top_loss: int = 0, level: float = 0.9,
    finished: str | Sequence[str] = (),
) -> "BestSettings":  # fmt: skip
    """Find the best settings of each group of runs, and laws through them (`scalelab fit --best-of=… --per=…`).

    `source`: a folder of runs, a table's path, or several of these. The other arguments are the command's options;
    `over`: {setting: columns of its law}. BadInput as the command.
    """
    named = ",".join(f"{field}={column}" for field, column in (columns or {}).items())
    return read_best_settings(
        [os.path.expanduser(each) for each in list_paths(source)], list(best_of), list(per), over or {},
        columns=named, n_convention=n_convention, where=list(where), drop_top_loss=drop_top_loss, level=level,
        finished=_list_words(finished),
    ).best  # fmt: skip
