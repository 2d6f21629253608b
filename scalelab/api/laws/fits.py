"""Fit a scaling law from Python, as `scalelab fit` does."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, Union

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
from scalelab.api.laws.fit_rows import (
    Rows,
    check_columns,
    list_words,
    read_rows,
    read_sources,
    read_weights,
    tells_of_runs,
)
from scalelab.api.laws.settings import read_best_settings
from scalelab.errors import BadInput
from scalelab.laws.fits.fitting import fit as fit_columns
from scalelab.laws.fits.study import default_convention, fit_group_study, fit_study
from scalelab.laws.fits.weights import BY_SIZE
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.names import load_law as load_named
from scalelab.laws.read.table import Table

if TYPE_CHECKING:
    from scalelab.laws.fits.fitted import Fitted
    from scalelab.laws.fits.groups.group_fits import GroupFits
    from scalelab.laws.law.law import Law
    from scalelab.laws.use.settings.best import BestSettings


AnyLaw = Union[str, "Law", Callable[..., object]]
Counted = Callable[[str, int, int], None]
OVER = optional(
    mapping_of(
        Kind("", lambda value: isinstance(value, list | tuple) and all(map(TEXT.fits, value))),
        "a dict of lists of columns such as {'lr': ['N']}",
    )
)
FITTING = {"hold": HELD, "k": optional(POSITIVE)}


def load_law(law: AnyLaw, hold: Mapping[str, float] | None = None, size: str | None = None) -> "Law":
    """Load a law by name, `pkg.mod:fn`, function or record; `hold` = {parameter: value} holds parameters fixed.

    `size`: whether its N counts "active" or "total" parameters, where tables of mixtures of experts have both.
    """
    check_value("law", law, either(instance("a law's name, a Law", str, law_lib.Law), FUNCTION))
    known = load_named(law) if isinstance(law, str) else law if isinstance(law, law_lib.Law) else law_lib.law_of(law)
    known = law_lib.count_size(known, check_value("size", size, TEXT)) if size is not None else known
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
    return read_sources(names, load_law(law), columns, n_convention, list(where), finished=list_words(finished))


@check_arguments(**FITTING)
def fit(
    source: Rows,
    law: AnyLaw = "chinchilla",
    *,
    columns: Mapping[str, str] | None = None,
    n_convention: str | None = None,
    where: str | Sequence[str] = (),
    drop_top_loss: int = 0,
    cluster: str = "auto",
    checkpoints: str = "auto",
    hold: Mapping[str, float] | None = None,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    target_flops: float | Sequence[float] = (),
    target_values: Mapping[str, float] | None = None,
    holdout: int = 0,
    level: float = 0.9,
    identify: bool = True,
    k: float | None = None,
    weights: str | None = None,
    progress: Counted | None = None,
    finished: str | Sequence[str] = (),
) -> "Fitted":
    """Fit a scaling law (`scalelab fit`) to runs or a table, with intervals and what the data determine.

    `source`: a folder of runs, a .csv, .jsonl or .parquet file, several of these; or rows, as `runs` returns them; or
    columns `{"N": …, "D": …, "loss": …}`; or what `read_table` read. `law`: a name, `pkg.mod:fn`, a function or a
    `Law`. The others are the command's options; `k`: FLOPs of a parameter and token, `identify`: find out what the data
    determine, `progress(what, done, of)`. BadInput as the command; FitError where no optimum can be certified.
    """
    known, options = (
        load_law(law, hold),
        _Options(
            objective=objective,
            delta=delta,
            bootstrap=bootstrap,
            seed=seed,
            target_flops=list_budgets(target_flops),
            level=level,
            k=k,
            held=target_values,
            progress=progress,
        ),
    )
    if isinstance(source, Mapping):
        check_columns(source)
        plain = not (columns or n_convention or where or drop_top_loss or finished)
        if plain and not tells_of_runs(source, known, cluster, checkpoints):
            given = weights if weights in (None, BY_SIZE) else read_weights(source, weights)
            return fit_columns(
                source, known, cluster=cluster, holdout=holdout, identify=identify, weights=given, **options
            )
    rows = read_rows(source, known, columns, n_convention, list(where), list_words(finished))
    return fit_study(
        rows,
        known,
        n_convention or default_convention(rows),
        drop_top_loss,
        cluster,
        checkpoints,
        weights,
        holdout=holdout,
        identify=identify,
        **options,
    )


@check_arguments(**FITTING)
def fit_groups(
    source: Rows,
    by: str,
    law: AnyLaw = "chinchilla",
    *,
    columns: Mapping[str, str] | None = None,
    n_convention: str | None = None,
    where: str | Sequence[str] = (),
    drop_top_loss: int = 0,
    cluster: str = "auto",
    checkpoints: str = "auto",
    hold: Mapping[str, float] | None = None,
    exponents: str = "shared",
    shared: str | Sequence[str] = (),
    against: str | None = None,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    target_flops: float | Sequence[float] = (),
    target_values: Mapping[str, float] | None = None,
    level: float = 0.9,
    k: float | None = None,
    progress: Counted | None = None,
    finished: str | Sequence[str] = (),
) -> "GroupFits":
    """Fit one law to groups of rows, those of equal values in column `by`, and compare them (`scalelab fit --by`).

    `exponents`: shared, separate or pooled; `shared`: further parameters of all groups; `against`: the group of
    reference. The others as for `fit`.
    """
    budgets = [target_flops] if isinstance(target_flops, int | float) else list(target_flops)
    known, options = (
        load_law(law, hold),
        _Options(
            objective=objective,
            delta=delta,
            bootstrap=bootstrap,
            seed=seed,
            target_flops=budgets,
            level=level,
            k=k,
            held=target_values,
            progress=progress,
        ),
    )
    if isinstance(source, Mapping):
        check_columns(source)
    rows = read_rows(source, known, columns, n_convention, list(where), list_words(finished))
    return fit_group_study(
        rows,
        by,
        known,
        n_convention or default_convention(rows),
        drop_top_loss,
        cluster,
        checkpoints,
        exponents=exponents,
        shared=tuple([shared] if isinstance(shared, str) else shared),
        against=against,
        **options,
    )


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


@check_arguments(source=several(STORED), over=OVER, level=SHARE)
def best_settings(
    source: Path | Sequence[Path],
    best_of: str | Sequence[str] = "lr",
    per: str | Sequence[str] = ("N", "D"),
    over: Mapping[str, Sequence[str]] | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    n_convention: str | None = None,
    where: str | Sequence[str] = (),
    drop_top_loss: int = 0,
    level: float = 0.9,
    finished: str | Sequence[str] = (),
) -> "BestSettings":
    """Find the best settings of each group of runs, and laws through them (`scalelab fit --best-of=… --per=…`).

    `source`: a folder of runs, a table's path, or several of these. The other arguments are the command's options;
    `over`: {setting: columns of its law}. BadInput as the command.
    """
    named = ",".join(f"{field}={column}" for field, column in (columns or {}).items())
    return read_best_settings(
        [os.path.expanduser(each) for each in list_paths(source)],
        list(best_of),
        list(per),
        over or {},
        columns=named,
        n_convention=n_convention,
        where=list(where),
        drop_top_loss=drop_top_loss,
        level=level,
        finished=list_words(finished),
    ).best
