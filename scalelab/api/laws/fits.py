"""A scaling law fitted from Python, as `scalelab fit` does, and what follows from it."""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Union

from scalelab.api.arguments import (
    ANYTHING,
    FLAG,
    FOLDER,
    FUNCTION,
    NAMES,
    PATH,
    POSITIVE,
    SHARE,
    STORED,
    TEXT,
    VALUES,
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
    whole,
)
from scalelab.errors import BadInput, nearest_hint

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from scalelab.laws.fitted import Fitted
    from scalelab.laws.groups.group_fits import GroupFits
    from scalelab.laws.law.law import Law
    from scalelab.laws.read.table import Table
    from scalelab.laws.trust.tournament import TournamentEntry
    from scalelab.laws.trust.uncertainty import Prediction
    from scalelab.laws.use.next_runs import NextRuns, ProposedRun
    from scalelab.laws.use.settings.best import BestSettings

Rows = Union[Path, Sequence[Path], "Mapping[str, ArrayLike]", Sequence[Mapping[str, object]], "Table"]
AnyLaw = Union[str, "Law", Callable[..., object]]
Counted = Callable[[str, int, int], None]
OVER = optional(mapping_of(Kind("", lambda value: isinstance(value, list | tuple) and all(map(TEXT.fits, value))),
    "a dict of lists of columns such as {'lr': ['N']}"))  # fmt: skip
READING = {
    "columns": NAMES, "n_convention": optional(TEXT), "where": several(TEXT), "drop_top_loss": whole(0),
    "cluster": TEXT,
}  # fmt: skip
FITTING = {
    "law": ANYTHING, "hold": VALUES, "objective": TEXT, "delta": optional(POSITIVE), "bootstrap": whole(0),
    "seed": whole(0), "target_flops": several(POSITIVE), "target_values": VALUES, "level": SHARE,
    "k": optional(POSITIVE), "progress": optional(FUNCTION),
}  # fmt: skip


def load_law(law: AnyLaw, hold: Mapping[str, float] | None = None) -> "Law":
    """A law by its name, `pkg.mod:fn`, function or record, with the parameters of `hold` held at values."""
    from scalelab.laws.law import law as law_lib
    from scalelab.laws.law.names import load_law as load_named

    check_value("law", law, either(instance("a law's name, a Law", str, law_lib.Law), FUNCTION))
    known = load_named(law) if isinstance(law, str) else law if isinstance(law, law_lib.Law) else law_lib.law_of(law)
    return law_lib.hold_params(known, **check_value("hold", hold, VALUES)) if hold else known


@check_arguments(sources=several(STORED), law=ANYTHING, columns=NAMES, n_convention=optional(TEXT), where=several(TEXT))
def read_table(
    sources: Path | Sequence[Path], law: AnyLaw = "chinchilla", *, columns: Mapping[str, str] | None = None,
    n_convention: str | None = None, where: str | Sequence[str] = (),
) -> "Table":  # fmt: skip
    """The rows of runs and tables as `fit` reads them for a law, and notes on the reading (`Table.notes`)."""
    from scalelab.api.laws.fit_rows import read_sources

    names = [os.path.expanduser(source) for source in list_paths(sources)]
    return read_sources(names, load_law(law), columns, n_convention, list(where))


@check_arguments(source=ANYTHING, **READING, **FITTING, holdout=whole(0), identify=FLAG)
def fit(
    source: Rows, law: AnyLaw = "chinchilla", *, columns: Mapping[str, str] | None = None,
    n_convention: str | None = None, where: str | Sequence[str] = (), drop_top_loss: int = 0, cluster: str = "auto",
    hold: Mapping[str, float] | None = None, objective: str = "huber_log", delta: float | None = None,
    bootstrap: int = 1000, seed: int = 0, target_flops: float | Sequence[float] = (),
    target_values: Mapping[str, float] | None = None, holdout: int = 0, level: float = 0.9, identify: bool = True,
    k: float | None = None, progress: Counted | None = None,
) -> "Fitted":  # fmt: skip
    """Fit a scaling law (`scalelab fit`) to runs or a table, with intervals and what the data determine.

    `source`: a folder of runs, a .csv, .jsonl or .parquet file, several of these; or rows, as `runs` returns them; or
    columns `{"N": …, "D": …, "loss": …}`; or what `read_table` read. `law`: a name, `pkg.mod:fn`, a function or a
    `Law`. The others are the command's options; `k`: FLOPs of a parameter and token, `identify`: find out what the data
    determine, `progress(what, done, of)`. BadInput as the command; FitError where no optimum can be certified.
    """
    from scalelab.laws.fitting import fit as fit_columns
    from scalelab.laws.read.study import fit_study

    known, options = load_law(law, hold), _Options(
        objective=objective, delta=delta, bootstrap=bootstrap, seed=seed, target_flops=_numbers(target_flops),
        level=level, k=k, held=target_values, progress=progress,
    )  # fmt: skip
    if isinstance(source, Mapping):
        _check_columns(source)
        if not (columns or n_convention or where or drop_top_loss):
            return fit_columns(source, known, cluster=cluster, holdout=holdout, identify=identify, **options)
    rows = _read_rows(source, known, columns, n_convention, list(where))
    return fit_study(
        rows, known, n_convention or "total", drop_top_loss, cluster, holdout=holdout, identify=identify, **options
    )


@check_arguments(
    source=ANYTHING, by=TEXT, **READING, **FITTING, exponents=TEXT, shared=several(TEXT), against=optional(TEXT)
)
def fit_groups(
    source: Rows, by: str, law: AnyLaw = "chinchilla", *, columns: Mapping[str, str] | None = None,
    n_convention: str | None = None, where: str | Sequence[str] = (), drop_top_loss: int = 0, cluster: str = "auto",
    hold: Mapping[str, float] | None = None, exponents: str = "shared", shared: str | Sequence[str] = (),
    against: str | None = None, objective: str = "huber_log", delta: float | None = None, bootstrap: int = 1000,
    seed: int = 0, target_flops: float | Sequence[float] = (), target_values: Mapping[str, float] | None = None,
    level: float = 0.9, k: float | None = None, progress: Counted | None = None,
) -> "GroupFits":  # fmt: skip
    """Fit one law to groups of rows, those of equal values in column `by`, and compare them (`scalelab fit --by`).

    `exponents`: shared, separate or pooled; `shared`: further parameters of all groups; `against`: the group of
    reference. The others as for `fit`.
    """
    from scalelab.laws.read.study import fit_group_study

    known, options = load_law(law, hold), _Options(
        objective=objective, delta=delta, bootstrap=bootstrap, seed=seed, target_flops=_numbers(target_flops),
        level=level, k=k, held=target_values, progress=progress,
    )  # fmt: skip
    if isinstance(source, Mapping):
        _check_columns(source)
    rows = _read_rows(source, known, columns, n_convention, list(where))
    return fit_group_study(
        rows, by, known, n_convention or "total", drop_top_loss, cluster, exponents=exponents,
        shared=tuple([shared] if isinstance(shared, str) else shared), against=against, **options,
    )  # fmt: skip


class _Options(TypedDict):
    """What both kinds of fits are told."""

    objective: str
    delta: float | None
    bootstrap: int
    seed: int
    target_flops: Sequence[float]
    level: float
    k: float | None
    held: Mapping[str, float] | None
    progress: Counted | None


def _numbers(values: float | Sequence[float]) -> Sequence[float]:
    return [values] if isinstance(values, int | float) else list(values)


def _check_columns(columns: Mapping[str, Any]) -> None:
    """BadInput for columns that are not lists, or not of one length."""
    lengths = {}
    for name, values in columns.items():
        if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
            raise BadInput(f"source: column {name!r} is {str(values)[:60]!r}; it must be a list of values, one a run")
        lengths[name] = len(values)
    if len(set(lengths.values())) != 1:
        raise BadInput(f"source: columns must be equally long, and these have {lengths or 'no value'}")


def _read_rows(
    source: Rows, law: "Law", columns: Mapping[str, str] | None, n_convention: str | None, where: list[str]
) -> list[dict[str, Any]]:
    from scalelab.api.laws.fit_rows import read_sources
    from scalelab.laws.read.study import N_COLUMNS
    from scalelab.laws.read.table import Table
    from scalelab.laws.read.where import filter_rows

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
        return read_sources(paths, law, columns, n_convention, where).rows
    if not all(isinstance(row, Mapping) for row in sources):
        raise BadInput(f"source={str(source)[:60]}: paths, rows (dicts), or columns by name")
    fields = {"loss": "val_loss"} | dict(columns or {})
    renamed = [{**row, **{field: row[name] for field, name in fields.items() if name in row}} for row in sources]
    return filter_rows([{**row, "val_loss": row["loss"]} if "loss" in row else row for row in renamed], where)


def _check_fitted(fitted: object) -> None:
    from scalelab.laws.fitted import Fitted

    check_value("fitted", fitted, instance("a fit, as `scalelab.api.fit` returns it", Fitted))


@check_arguments(fitted=ANYTHING, target_flops=several(POSITIVE))
def predict(fitted: "Fitted", target_flops: float | Sequence[float]) -> "dict[float, Prediction]":
    """What a run of each budget reaches, by a law of C alone, with intervals (`scalelab fit --target-flops`)."""
    from scalelab.laws.trust.uncertainty import predict_run

    _check_fitted(fitted)
    if fitted.bootstrap is None or fitted.law.columns != ("C",):
        raise BadInput("predict is for a law of C alone, fitted with resamples; others have `fitted.decisions`")
    return {
        C: predict_run(fitted.problem, fitted.best, fitted.bootstrap, {"C": C}, fitted.level)
        for C in _numbers(target_flops)
    }


HOLDOUT_DIVISOR = 5  # a tournament holds out a fifth of the rows, where it is not told how many


@check_arguments(
    fitted=ANYTHING, holdout=whole(0), objective=TEXT, delta=optional(POSITIVE), bootstrap=whole(0),
    n_convention=optional(TEXT), progress=optional(FUNCTION),
)  # fmt: skip
def tournament(
    fitted: "Fitted", holdout: int = 0, *, objective: str = "huber_log", delta: float | None = None,
    bootstrap: int = 1000, n_convention: str | None = None, progress: Counted | None = None,
) -> "tuple[TournamentEntry, ...]":  # fmt: skip
    """Let every law that has its columns predict the `holdout` largest rows of a fit (`scalelab fit --tournament`)."""
    from scalelab.api.laws.fit_rows import numeric_columns
    from scalelab.laws.law.names import LAWS
    from scalelab.laws.trust.holdout import SCORE_RESAMPLES
    from scalelab.laws.trust.tournament import run_tournament

    _check_fitted(fitted)
    table = numeric_columns(fitted.kept, n_convention or "total")
    columns = set(table) | ({"C", "M"} if {"N", "D"} <= set(table) else set())
    laws = [law for law in LAWS.values() if law.target == fitted.law.target and set(law.columns) <= columns]
    laws += [fitted.law] if fitted.law not in laws else []
    count = holdout or max(1, len(fitted.kept) // HOLDOUT_DIVISOR)
    labels = fitted.dependence.labels if fitted.dependence else None
    resamples = min(bootstrap, SCORE_RESAMPLES)
    return run_tournament(table, laws, count, objective, delta, labels, resamples, fitted.level, progress)


class Proposed(NamedTuple):
    """The runs of a grid that narrow a fit most, their names, config files that were written, notes on the reading."""

    plan: "NextRuns"
    names: list[str]
    files: list[pathlib.Path]
    notes: tuple[str, ...]


@check_arguments(
    fitted=ANYTHING, next_runs=whole(1), grid=PATH, budget_flops=POSITIVE, determine=TEXT, target_values=VALUES,
    n_convention=optional(TEXT), columns=NAMES, grid_columns=NAMES, configs_out=FOLDER,
)  # fmt: skip
def propose_runs(
    fitted: "Fitted", next_runs: int, grid: Path, budget_flops: float, *, determine: str = "N",
    target_values: Mapping[str, float] | None = None, n_convention: str | None = None,
    columns: Mapping[str, str] | None = None, grid_columns: Mapping[str, str] | None = None,
    configs_out: Path = "next",
) -> Proposed:  # fmt: skip
    """Propose which runs of a grid to do next (`scalelab fit --next-runs`).

    `grid`: a config with sweep(h), whose proposed runs are written to `configs_out`, or a table of candidates, with
    `grid_columns`; `determine`: N, loss or a parameter.
    """
    from scalelab.laws.use.next_runs import propose_runs as propose
    from scalelab.sweep.forks import candidate_columns, write_forks
    from scalelab.sweep.trials import load_trials

    _check_fitted(fitted)
    file, convention = os.fspath(grid), n_convention or "total"
    if not pathlib.Path(file).is_file():
        raise BadInput(f"--grid={file}: no such file; it is a config with sweep(h), or a table of candidates")
    trials = load_trials(file, {}) if file.endswith(".py") else {}
    if trials and grid_columns:
        raise BadInput(f"{GRID_OPTION} names columns of a table, and --grid={file} is a config: leave it out")
    names, candidates, notes = (
        (list(trials), candidate_columns(trials, convention), ())
        if trials
        else _read_grid(fitted, file, columns or {}, grid_columns or {}, n_convention)
    )
    plan = propose(fitted, candidates, next_runs, budget_flops, determine, held=target_values)
    chosen = [names[proposed.row] for proposed in plan.runs]
    titles = {name: _title(run) for name, run in zip(chosen, plan.runs, strict=True) if trials}
    files = write_forks(configs_out, file, {name: trials[name] for name in chosen}, titles) if trials else []
    return Proposed(plan, chosen, files, notes)


def _title(run: "ProposedRun") -> str:
    return f"Proposed by a fit: N = {run.columns['N']:.4g}, D = {run.columns['D']:.4g} tokens, {run.flops:.3g} FLOPs."


GRID_OPTION = "--grid-columns"


def _read_grid(
    fitted: "Fitted", grid: str, columns: Mapping[str, str], grid_columns: Mapping[str, str], n_convention: str | None
) -> tuple[list[str], Any, tuple[str, ...]]:
    """Read a table of candidates: (names, columns [G] with N, D and the law's other fields, notes on the reading).

    Its columns are those of `grid_columns`, then those of `columns` that it has, then those of usual names.
    """
    from scalelab.api.laws.fit_rows import numeric_columns, read_sources
    from scalelab.laws.read.columns import split_conversion
    from scalelab.laws.read.readers import column_names

    header = column_names(grid)
    named = {field: name for field, name in columns.items() if split_conversion(name, header)[0] in header}
    named.pop(fitted.law.target, None)
    named |= grid_columns
    table = read_sources([grid], fitted.law, named, n_convention, with_target=False, option=GRID_OPTION)
    return [row["name"] for row in table.rows], numeric_columns(table.rows, n_convention or "total"), table.notes


@check_arguments(result=ANYTHING, figures=FOLDER, target_values=VALUES)
def draw_fit(result: object, figures: Path, target_values: Mapping[str, float] | None = None) -> list[str]:
    """Draw a `fit`, `read_best_settings`, `fit_approach` (2) or `predict_curves` into a folder (`fit --figures`)."""
    from scalelab.api.laws.approaches import ApproachFit
    from scalelab.api.laws.curves import CurveStudy
    from scalelab.api.laws.settings import ReadSettings
    from scalelab.laws.fitted import Fitted
    from scalelab.laws.use.isoflop import IsoFlop

    folder = pathlib.Path(figures)
    if isinstance(result, Fitted):
        from scalelab.report.figures.fitplots import write_fit_figures

        return [*map(str, write_fit_figures(folder, result, target_values or {}))]
    if isinstance(result, ReadSettings):
        from scalelab.report.figures.lrplots import write_settings_figures

        return [*map(str, write_settings_figures(folder, result.best, result.table))]
    if isinstance(result, CurveStudy):
        from scalelab.report.figures.scheduleplot import write_curve_figure

        return [*map(str, write_curve_figure(folder, result.fitted, result.predictions))]
    if isinstance(result, ApproachFit) and isinstance(result.fit, IsoFlop):
        from scalelab.report.figures.fitplots import write_isoflop_figure

        return [*map(str, write_isoflop_figure(folder, result.fit, *result.columns, "N"))]
    raise BadInput(f"result={str(result)[:60]!r} is not a fit that has figures")


@check_arguments(
    source=several(STORED), best_of=several(TEXT), per=several(TEXT), over=OVER, columns=NAMES,
    n_convention=optional(TEXT), where=several(TEXT), drop_top_loss=whole(0), level=SHARE,
)  # fmt: skip
def best_settings(
    source: Path | Sequence[Path], best_of: str | Sequence[str] = "lr", per: str | Sequence[str] = ("N", "D"),
    over: Mapping[str, Sequence[str]] | None = None, *, columns: Mapping[str, str] | None = None,
    n_convention: str | None = None, where: str | Sequence[str] = (), drop_top_loss: int = 0, level: float = 0.9,
) -> "BestSettings":  # fmt: skip
    """Find the best settings of each group of runs, and laws through them (`scalelab fit --best-of=… --per=…`).

    `source`: a folder of runs, a table's path, or several of these. The other arguments are the command's options;
    `over`: {setting: columns of its law}. BadInput as the command.
    """
    from scalelab.api.laws.settings import read_best_settings

    named = ",".join(f"{field}={column}" for field, column in (columns or {}).items())
    return read_best_settings(
        [os.path.expanduser(each) for each in list_paths(source)], list(best_of), list(per), over or {},
        columns=named, n_convention=n_convention, where=list(where), drop_top_loss=drop_top_loss, level=level,
    ).best  # fmt: skip
