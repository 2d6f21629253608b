"""Plan and fit from Python, through the doors that the commands use."""

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scalelab.api.arguments import (
    ANYTHING,
    FIT_OPTIONS,
    FUNCTION,
    NAMES,
    SHARE,
    STORED,
    TEXT,
    Kind,
    check_arguments,
    check_options,
    check_value,
    either,
    instance,
    mapping_of,
    optional,
    several,
    whole,
)
from scalelab.api.reading.tables import Source
from scalelab.errors import BadInput, nearest_hint

if TYPE_CHECKING:
    from scalelab.laws.fits.fitted import Fitted
    from scalelab.laws.fits.groups.group_fits import GroupFits
    from scalelab.laws.use.settings.best import BestSettings


OVER = optional(mapping_of(Kind("", lambda value: isinstance(value, list | tuple) and all(map(TEXT.fits, value))),
    "a dict of lists of columns such as {'lr': ['N']}"))  # fmt: skip


def _path(value: Any, what: str) -> pathlib.Path:
    if not isinstance(value, str | os.PathLike):
        raise BadInput(f"{what}={str(value)[:60]!r} is a {type(value).__name__}: a path, or for a config its tree")
    return pathlib.Path(os.path.expanduser(value))


@check_arguments(
    source=ANYTHING, law=ANYTHING, columns=NAMES, n=optional(TEXT), where=several(TEXT), drop_top_loss=whole(0),
    cluster=TEXT, by=optional(TEXT),
)  # fmt: skip
def fit(
    source: Any, law: Any = "chinchilla", *, columns: Mapping[str, str] | None = None, n: str | None = None,
    where: Sequence[str] | str = (), drop_top_loss: int = 0, cluster: str = "auto", by: str | None = None,
    **options: Any,
) -> "Fitted | GroupFits":  # fmt: skip
    """Fit a scaling law (`scalelab fit`) to runs or a table, with intervals and what the data determine.

    `source`: a folder of runs, a .csv, .jsonl or .parquet file, several of these; or rows, as `scalelab.runs` returns
    them; or columns `{"N": …, "D": …, "loss": …}`. `law`: a name, `pkg.mod:fn`, a function or a `Law`. `columns`, `n`,
    `where`, `drop_top_loss` and `cluster` are the command's options; `options` those of `scalelab.laws.fit`
    (`target_flops`, `bootstrap`, `holdout`, …). `by`: a column whose values make groups of rows; then a `GroupFits`
    comes back, and `options` are those of `laws.groups.fit_groups` (`exponents`, `shared`, `against`, …). BadInput as
    the command; FitError where no optimum can be certified.
    """
    from scalelab.laws.fits.fitting import fit as fit_columns
    from scalelab.laws.fits.groups.fit_groups import fit_groups
    from scalelab.laws.fits.study import N_COLUMNS, fit_group_study, fit_study
    from scalelab.laws.law.law import Law, law_of
    from scalelab.laws.law.names import load_law

    check_value("law", law, either(instance("a law's name, a Law", str, Law), FUNCTION))
    check_value("source", source, instance("paths, rows (dicts), or columns by name", str, os.PathLike, Iterable))
    options = check_options(options, fit_columns if by is None else fit_groups, FIT_OPTIONS)
    if n not in (None, *N_COLUMNS):
        raise BadInput(f"n={n!r} is not a way to count N{nearest_hint(str(n), N_COLUMNS)}")
    law = load_law(law) if isinstance(law, str) else law if isinstance(law, Law) else law_of(law)
    if isinstance(source, Mapping):
        _check_columns(source)
        if by is None and not (columns or n or where or drop_top_loss):
            return fit_columns(source, law, cluster=cluster, **options)
        source = [dict(zip(source, values, strict=True)) for values in zip(*source.values(), strict=True)]
    rows = _fit_rows(source, law, columns, n, [where] if isinstance(where, str) else list(where))
    if by is not None:
        return fit_group_study(rows, by, law, n or "total", drop_top_loss, cluster, **options)
    return fit_study(rows, law, n or "total", drop_top_loss, cluster, **options)


def _check_columns(columns: Mapping[str, Any]) -> None:
    """BadInput for columns that are not lists, or not of one length."""
    lengths = {}
    for name, values in columns.items():
        if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
            raise BadInput(f"source: column {name!r} is {str(values)[:60]!r}; it must be a list of values, one a run")
        lengths[name] = len(values)
    if len(set(lengths.values())) != 1:
        raise BadInput(f"source: columns must be equally long, and these have {lengths or 'no value'}")


@check_arguments(
    source=several(STORED), best_of=several(TEXT), per=several(TEXT), over=OVER, columns=NAMES, n=optional(TEXT),
    where=several(TEXT), level=SHARE,
)  # fmt: skip
def best_settings(
    source: Source | Sequence[Source], best_of: Sequence[str] | str = "lr", per: Sequence[str] | str = ("N", "D"),
    over: Mapping[str, Sequence[str]] | None = None, *, columns: Mapping[str, str] | None = None, n: str | None = None,
    where: Sequence[str] | str = (), level: float = 0.9,
) -> "BestSettings":  # fmt: skip
    """Find the best settings of each group of runs, and laws through them (`scalelab fit --best-of=… --per=…`).

    `source`: a folder of runs, a table's path, or several of these. The other arguments are the command's options;
    `over`: {setting: columns of its law}. BadInput as the command.
    """
    from scalelab.api.laws.settings import read_best_settings

    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    named = ",".join(f"{field}={column}" for field, column in (columns or {}).items())
    settings, sizes = ([each] if isinstance(each, str) else list(each) for each in (best_of, per))
    return read_best_settings(
        [str(_path(each, "source")) for each in sources], settings, sizes, over or {}, columns=named, n_convention=n,
        where=[where] if isinstance(where, str) else list(where), level=level,
    ).best  # fmt: skip


def _fit_rows(source: Any, law: Any, columns: Mapping[str, str] | None, n: str | None, where: list[str]) -> Any:
    from scalelab.api.laws.fit_rows import read_sources
    from scalelab.laws.read.where import filter_rows

    sources: list[Any] = [source] if isinstance(source, str | os.PathLike) else list(source)
    if all(isinstance(each, str | os.PathLike) for each in sources):
        return read_sources([os.path.expanduser(each) for each in sources], law, columns, n, where).rows
    if not all(isinstance(row, Mapping) for row in sources):
        raise BadInput(f"source={str(source)[:60]}: paths, rows (dicts), or columns by name")
    fields = {"loss": "val_loss"} | dict(columns or {})
    renamed = [{**row, **{field: row[name] for field, name in fields.items() if name in row}} for row in sources]
    return filter_rows([{**row, "val_loss": row["loss"]} if "loss" in row else row for row in renamed], where)
